"""How a list of names becomes a chain, and what is refused on the way."""

from __future__ import annotations

import importlib.metadata
import sys
import types
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from support.views import setting, step_view
from trimtab import plugins
from trimtab.control.chain import Chain
from trimtab.control.protocol import (
    Credit,
    CreditMethod,
    MethodOptions,
    Reduction,
    Refuse,
    SequenceNorms,
    Setting,
    StepMethod,
    StepView,
    View,
    Weighing,
)
from trimtab.control.registry import MethodEntry, build, method_class, names
from trimtab.methods.catalogue import BUILTIN, BUNDLES
from trimtab.records import TrimtabError


def chain(*entries: str | dict[str, Any], where: Setting | None = None) -> Chain:
    listed = [MethodEntry(name=e) if isinstance(e, str) else MethodEntry.model_validate(e) for e in entries]
    return Chain.resolve(listed, where or setting())


def listed(c: Chain) -> list[str]:
    return [m.name for m in c.methods]


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Register method classes the way an installed distribution does."""
    module = types.ModuleType("somebodys_methods")
    monkeypatch.setitem(sys.modules, "somebodys_methods", module)
    found: list[EntryPoint] = []

    def entry_points(group: str) -> EntryPoints:
        assert group == "trimtab.methods"
        return EntryPoints([*found, *importlib.metadata.entry_points(group=group)])

    monkeypatch.setattr(plugins, "entry_points", entry_points)

    def register(*classes: type) -> None:
        for cls in classes:
            setattr(module, cls.__name__, cls)
            found.append(EntryPoint(getattr(cls, "name", cls.__name__), f"somebodys_methods:{cls.__name__}", "trimtab.methods"))

    return register


# ---------------------------------------------------------------------------------------------------------------- resolution


def test_a_bundle_expands_to_its_members_in_loop_order() -> None:
    c = chain("vcpo")
    assert listed(c) == ["seq_tis", "opob", "linear", "norm_clip", "ess"]
    assert [m.origin for m in c.members] == ["vcpo"] * 5
    assert c.methods[0].options.model_dump() == {"c": 8.0}
    assert c.said == []
    assert c.sequence_norms == SequenceNorms("exact", whole_update=False)


def test_members_are_called_in_loop_order_whatever_the_list_says() -> None:
    assert listed(chain("ess", "norm_clip", "linear", "grpo", "seq_tis")) == ["seq_tis", "grpo", "linear", "norm_clip", "ess"]


@pytest.mark.parametrize(
    ("entries", "chain_", "said"),
    [
        (["vcpo", "grpo"], ["seq_tis", "grpo", "linear", "norm_clip", "ess"], "grpo replaces opob of vcpo: both own the credit point"),
        (
            ["vcpo", {"name": "tok_mis"}, {"name": "opob", "weighting": "exact"}],
            ["tok_mis", "opob", "linear", "norm_clip", "ess"],
            "tok_mis replaces seq_tis of vcpo: both correct the current/behavior ratio",
        ),
        (
            ["vcpo", "rloo", "ppo_clip"],
            ["rloo", "ppo_clip", "norm_clip", "ess"],
            "ppo_clip replaces seq_tis of vcpo: both correct the current/behavior ratio",
        ),
        (
            ["vcpo", "none"],
            ["none", "opob", "linear", "norm_clip", "ess"],
            "none replaces seq_tis of vcpo: both say what to do about stale rollouts",
        ),
        (
            ["vcpo", {"name": "norm_clip", "max_norm": 0.5}],
            ["seq_tis", "opob", "linear", "norm_clip", "ess"],
            "norm_clip replaces norm_clip",
        ),
    ],
    ids=["owner", "weight", "objective and ratio", "none", "same method"],
)
def test_a_later_entry_replaces_a_bundles(entries: Sequence[str | dict[str, Any]], chain_: list[str], said: str) -> None:
    c = chain(*entries)
    assert listed(c) == chain_
    assert any(s.startswith(said) for s in c.said)


def test_the_replacement_keeps_its_own_options() -> None:
    c = chain("vcpo", {"name": "norm_clip", "max_norm": 0.5}, {"name": "seq_tis", "c": 2})
    assert {m["name"]: m for m in c.describe()}["norm_clip"] == {"name": "norm_clip", "max_norm": 0.5}
    assert c.describe()[0] == {"name": "seq_tis", "c": 2.0}


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (["seq_tis", "grpo", "rloo"], "methods = ['grpo', 'rloo']: both own the credit point; keep one of them"),
        (["linear", "ppo_clip"], "methods = ['linear', 'ppo_clip']: both own the objective point; keep one of them"),
        (["seq_tis", "tok_tis"], "methods = ['seq_tis', 'tok_tis']: both correct the current/behavior ratio; keep one of them"),
        (["seq_tis", "grpo", "ppo_clip"], "methods = ['seq_tis', 'ppo_clip']: both correct the current/behavior ratio; keep one of them"),
        (["none", "seq_tis"], "methods = ['none', 'seq_tis']: both say what to do about stale rollouts; keep one of them"),
        (["seq_tis", "seq_tis"], "methods = ['seq_tis', 'seq_tis']: both are seq_tis; keep one of them"),
        (["vcpo", "vcpo"], "methods = ['seq_tis', 'seq_tis']: both are seq_tis; keep one of them"),
        (
            ["grpo", "vcpo"],
            "methods = ['grpo', 'opob']: both own the credit point; keep one of them, or write grpo after vcpo to replace its opob",
        ),
    ],
)
def test_two_that_the_user_wrote_are_refused(entries: list[str], said: str) -> None:
    with pytest.raises(TrimtabError) as error:
        chain(*entries)
    assert str(error.value).startswith(said)


def test_what_is_missing_is_added_and_said() -> None:
    c = chain("seq_tis")
    assert listed(c) == ["seq_tis", "grpo", "linear", "norm_clip"]
    assert c.said == [
        "no credit method: added grpo",
        "no objective method: added linear",
        "no gradient clip: added norm_clip(max_norm=1.0)",
    ]
    assert [m.origin for m in c.members] == ["", "default", "default", "default"]


def test_a_described_chain_is_the_same_chain() -> None:
    c = chain("vcpo", {"name": "ess", "reference": "calibrate", "floor": 0.1})
    again = chain(*c.describe())
    assert again.describe() == c.describe()
    assert again.calibration == c.calibration == 16


# -------------------------------------------------------------------------------------------------- asynchronous and its consent


def test_an_asynchronous_run_needs_a_correction_or_consent() -> None:
    with pytest.raises(TrimtabError, match=r'methods = \[\]: an asynchronous run needs a correction; write \["vcpo"\], or \["none"\]'):
        chain()
    with pytest.raises(TrimtabError, match=r"methods = \['grpo'\]: nothing corrects for stale rollouts; add .*\"seq_tis\", or \"none\""):
        chain("grpo")
    assert listed(chain("none", "grpo")) == ["none", "grpo", "linear", "norm_clip"]
    assert listed(chain("grpo", "ppo_clip")) == ["grpo", "ppo_clip", "norm_clip"]  # the clip is the correction


def test_a_synchronous_run_needs_none() -> None:
    assert listed(chain(where=setting(asynchronous=False))) == ["grpo", "linear", "norm_clip"]


# ------------------------------------------------------------------------------------------------------------- run and methods


@pytest.mark.parametrize("name", ["grpo", "rloo", "b0", "opob"])
def test_group_baselines_need_groups(name: str) -> None:
    with pytest.raises(TrimtabError, match=rf"rollout.group_size = 1: {name} compares the members of a group and needs at least 2"):
        chain("seq_tis", name, where=setting(group_size=1))


def test_reinforce_lives_with_groups_of_one() -> None:
    assert "reinforce" in listed(chain("seq_tis", "reinforce", where=setting(group_size=1)))


@pytest.mark.parametrize("entries", [["vcpo"], ["none", "ess"], ["none", {"name": "opob"}], ["grpo", "ppo_clip"]])
def test_ratios_of_a_cut_distribution_need_its_kept_sets(entries: list[Any]) -> None:
    with pytest.raises(TrimtabError, match=r"rollout.top_p < 1 or .* cannot report the kept sets.* use top_p = 1 and top_k = 0"):
        chain(*entries, where=setting(cut=True, reports_kept=False))
    chain(*entries, where=setting(cut=True))


def test_a_run_without_ratios_may_cut_without_kept_sets() -> None:
    assert listed(chain("none", "grpo", where=setting(cut=True, reports_kept=False)))[:2] == ["none", "grpo"]


def test_opob_needs_a_linear_objective() -> None:
    with pytest.raises(TrimtabError, match=r"methods = \['opob', 'ppo_clip'\]: opob needs an objective linear in the advantage"):
        chain("vcpo", "ppo_clip")
    with pytest.raises(TrimtabError, match=r"opob needs an objective linear"):
        chain("opob", "ppo_clip")


@pytest.mark.parametrize("weighting", ["paper", "repo"])
def test_opob_refuses_token_weights_but_in_its_exact_form(weighting: str) -> None:
    with pytest.raises(TrimtabError, match=rf"methods.opob.weighting = '{weighting}': tok_tis weighs tokens.* use exact or seq_tis"):
        chain("tok_tis", {"name": "opob", "weighting": weighting})
    assert "opob" in listed(chain("tok_tis", {"name": "opob", "weighting": "exact"}))


def test_the_released_codes_weighting_is_said_to_be_for_comparison() -> None:
    assert any("counts the importance weight twice" in said for said in chain("vcpo", {"name": "opob", "weighting": "repo"}).said)
    assert not any("twice" in said for said in chain("vcpo", {"name": "opob", "weighting": "exact"}).said)


def test_a_reduction_that_a_method_insists_on(plugin: Callable[..., None]) -> None:
    class DrGRPO(CreditMethod):
        name, reduction = "dr_grpo", Reduction.SEQ_MEAN_TOKEN_SUM_NORM

        def credit(self, view: View, w: Weighing) -> Credit:
            return Credit(view.reward_R)

    plugin(DrGRPO)
    with pytest.raises(TrimtabError, match=r"learner.reduction = 'seq_mean_token_mean': dr_grpo needs seq_mean_token_sum_norm"):
        chain("seq_tis", "dr_grpo")
    chain("seq_tis", "dr_grpo", where=setting(reduction=Reduction.SEQ_MEAN_TOKEN_SUM_NORM))


# ----------------------------------------------------------------------------------------------------------- names and options


def test_an_unknown_method_is_answered_with_the_known_ones() -> None:
    with pytest.raises(TrimtabError, match=r"methods = 'vcpoo': unknown method; use one of b0, .*ess, .*grpo, .*vcpo"):
        chain("vcpoo")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"name": "seq_tis", "cap": 2}, "methods.seq_tis.cap = 2: unknown option; options of seq_tis: c"),
        ({"name": "seq_tis", "c": 0}, "methods.seq_tis.c = 0: Input should be greater than 0; options of seq_tis: c"),
        ({"name": "linear", "x": 1}, "methods.linear.x = 1: unknown option; options of linear: none"),
        ({"name": "vcpo", "c": 2}, "methods.vcpo.c = 2: a bundle takes no options; write the member beside it (seq_tis, opob, linear, "),
        ({"name": "ess", "reference": 1.5}, 'methods.ess.reference = 1.5: ESS/B lies in (0, 1]; use 1.0, or "calibrate"'),
    ],
)
def test_a_bad_option_is_one_sentence(entry: dict[str, Any], said: str) -> None:
    with pytest.raises(TrimtabError) as error:
        chain("seq_tis", entry) if entry["name"] == "ess" else chain(entry)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_a_band_must_be_a_band() -> None:
    with pytest.raises(TrimtabError, match=r"methods.seq_mis.*low = 9.0 must be below high = 8.0; options of seq_mis: high, low"):
        chain({"name": "seq_mis", "low": 9})


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_every_built_in_method_explains_itself(name: str) -> None:
    cls = method_class(name)
    assert cls.name == name
    assert cls.source
    assert cls.summary
    assert cls.formula
    assert cls.__doc__
    assert build(name, {}).points()


def test_every_bundle_is_a_chain_by_itself() -> None:
    for bundle in BUNDLES:
        assert [m["name"] for m in chain(bundle).describe()] == [m["name"] for m in BUNDLES[bundle]]


# -------------------------------------------------------------------------------------------------------------- entry points


class HalfOptions(MethodOptions):
    by: float = 0.5


class Half(StepMethod):
    """Every step at a fixed share of the learning rate."""

    name, summary, source, formula = "half", "half steps", "nobody", "m = by"
    Options = HalfOptions
    options: HalfOptions

    def step(self, s: StepView) -> float | Refuse:
        return self.options.by


def test_an_installed_method_is_used_like_a_built_in_one(plugin: Callable[..., None]) -> None:
    plugin(Half)
    assert "half" in names()
    c = chain("vcpo", {"name": "half", "by": 0.25})
    assert listed(c)[-2:] == ["ess", "half"]
    assert c.learner().step(step_view([0.0, 0.0])) == 0.25
    with pytest.raises(TrimtabError, match=r"methods.half.bye = 1: unknown option; options of half: by"):
        chain("vcpo", {"name": "half", "bye": 1})


def test_an_installed_method_that_does_not_load_is_named(plugin: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    class NotOne:
        name = "not_one"

    plugin(NotOne)
    with pytest.raises(TrimtabError, match=r"methods = 'not_one': somebodys_methods:NotOne is not a subclass of .*Method"):
        chain("vcpo", "not_one")
    gone = EntryPoints([EntryPoint("gone", "no_such_module_anywhere:X", "trimtab.methods")])
    monkeypatch.setattr(plugins, "entry_points", lambda group: gone)
    with pytest.raises(TrimtabError, match=r"methods = 'gone': its entry point no_such_module_anywhere:X does not load"):
        chain("vcpo", "gone")
