"""Every registered method against hostile input at the points where it acts, and through whole updates of the real learner.

What is asked of all of them: a finite loss and finite gradients, or a refused step with a reason. A method that is registered and
not listed here fails; what to feed it is derived from its points, its needs and its switches.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import zlib
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from torch import Tensor

from support import fuzz, hostile
from support.updates import make_learner
from support.views import result
from trimtab.control.chain import Chain
from trimtab.control.protocol import GroupStats, Keep, Need, Notes, Point, PoolView, Refuse, Reject, Selection, Skip, StepView, View
from trimtab.control.registry import build, method_class, names
from trimtab.methods.catalogue import BUNDLES
from trimtab.records import Batch

# Every name, with values of switches that have no list of choices. Choices are tried by themselves.
CASES: dict[str, list[fuzz.Options]] = {
    "none": [],
    "seq_tis": [{"c": 2.0}],
    "tok_tis": [{"c": 2.0}],
    "seq_mis": [{"low": 0.5, "high": 2.0}],
    "tok_mis": [{"low": 0.5, "high": 5.0}],
    "grpo": [],
    "rloo": [],
    "reinforce": [{"baseline": 0.5}],
    "b0": [],
    "group_min": [],
    "reinforce_pp": [],
    "opo": [],
    "otb": [],
    "opob": [{"scope": "batch", "std": "none"}, {"scope": "batch", "leave_one_out": True}],
    "linear": [],
    "dr_grpo": [],
    "opmd": [{"tau": 1e-3}],
    "kimi": [{"tau": 10.0}],
    "cispo": [{"low": 0.8, "high": 1.2}],
    "gspo": [{"low": 0.4, "high": 0.4}],
    "sapo": [{"tau_positive": 50.0, "tau_negative": 50.0}],
    "dppo": [{"cap": 1.0}, {"divergence": "kl", "low": 0.05, "high": 0.05}],
    "topr": [],
    "bapo": [{"share": 0.99}],
    "m2po": [{"budget": 1e-9}],
    "opsm": [{"delta": 1e-4, "dual": 3.0}],
    "ppo_decoupled": [{"dual": 3.0}],
    "kl_term": [{"beta": 1.0, "target": 0.01}],
    "kl_reward": [{"target": 0.01}],
    "entropy_term": [{"coefficient": -0.1}],
    "ppo_clip": [{"dual": 3.0}, {"low": 0.99, "high": 100.0}],
    "gac": [{"c_low": 0.0, "c_high": 1.0}, {"c_low": 0.0, "c_high": 0.01, "max_consecutive_skips": 0}, {"warmup": 3}],
    "random_skip": [{"rate": 0.0}],
    "norm_clip": [{"max_norm": 1e-6}],
    "median_clip": [],
    "zclip": [],
    "update_cap": [],
    "ess": [{"floor": 0.1, "dead_band": 0.2}, {"reference": 0.5}],
    "geo_tis": [{"c": 2.0}],
    "geo_mis": [{"low": 0.5, "high": 2.0}],
    "icepop": [],
    "dis": [],
    "token_veto": [{"threshold": 0.5}],
    "mask_truncated": [],
    "k3_reject": [{"limit": 1e-9}],
    "decoupled": [{"lower": 0.5}, {"level": "sequence", "metric": "k3", "aggregate": "max"}],
    "m2po_mask": [{"budget": 1e-9}],
    "copc_mask": [],
    "batch_norm_weights": [],
    "dynamic_sampling": [{"max_refill": 1}],
    "overlong": [{"max_length": 5, "buffer": 2}],
    "gae": [{"lam_actor": 0.0, "lam_critic": 0.5}, {"alpha": 0.05}, {"gamma": 0.9}],
    "copc_credit": [{"low": 1.0, "high": 1.0}, {"c_bar": 1.0}],
    "vtrace": [{"rho_bar": 1e4, "c_bar": 1e4, "lam": 0.5}],
    "min_ess": [],
    "pace": [{"gamma": 0.0, "beta": 0.0}, {"population": 512, "w_star": 0.0, "order": "smallest", "unit": "max", "beta": 0.0}],
    "random_reject": [{"w_star": 0.0, "beta": 0.0, "requeue": True}],
    "freshest": [],
    "max_age": [{"max_age": 0}],
}
Test = TypeVar("Test", bound=Callable[..., None])
LEARNER_SIDE = (Point.SHAPE, Point.WEIGH, Point.CREDIT, Point.OBJECTIVE)


def fast(name: str, options: fuzz.Options) -> Callable[[Test], Test]:
    """Few examples, the same in every run and others for every method: together the methods see some thousand."""
    few = settings(max_examples=6, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    return lambda test: seed(zlib.crc32(f"{name}{options}".encode()))(few(test))


def cases(*points: Point) -> list[tuple[str, fuzz.Options]]:
    """Each listed method that acts at one of the points, with each of its switches."""
    listed = [n for n in CASES if n in names() and set(method_class(n).points()) & set(points)]
    return [(n, options) for n in listed for options in [*fuzz.switches(n), *CASES[n]]]


def named(case: object) -> str | None:
    return case if isinstance(case, str) else ",".join(f"{k}={v}" for k, v in case.items()) if isinstance(case, dict) else None


def chain_of(name: str, options: fuzz.Options) -> Chain:
    """A chain around the method; what no chain accepts with these options is refused at load, which is an outcome too."""
    chain = fuzz.chain_of(name, options)
    if chain is None and options:
        chain = fuzz.chain_of(name, {})
    assert chain is not None, f"no chain accepts {name}"
    return chain


def test_every_registered_method_is_fuzzed() -> None:
    assert set(names()) <= set(CASES), "list new methods in CASES"


# ------------------------------------------------------------------------------------------------------------------- learner side


@pytest.mark.parametrize(("name", "options"), cases(*LEARNER_SIDE), ids=named)
def test_finite_input_gives_finite_loss_and_gradients(name: str, options: fuzz.Options) -> None:
    @fast(name, options)
    @given(view=fuzz.views())
    def check(view: View) -> None:
        chain = chain_of(name, options)
        assert fuzz.play(chain, view).finite
        assert isinstance(view.recorder, Notes)
        assert list(fuzz.not_a_number(view.recorder)) == []

    check()


@pytest.mark.parametrize(("name", "options"), cases(*LEARNER_SIDE), ids=named)
def test_a_broken_log_prob_reaches_the_loss(name: str, options: fuzz.Options) -> None:
    """NaN of an action token is never masked away or divided out: it is in the loss, and the step is refused. Infinity raises nothing."""

    @fast(name, options)
    @given(view=fuzz.views())
    def check(view: View) -> None:
        chain = chain_of(name, options)
        token = view.scale_N.argmax()[None]
        for value in (math.nan, -math.inf):
            view.current_N, view.proximal_N = (x.index_fill(0, token, value) for x in (view.current, view.proximal))
            played = fuzz.play(chain, view)
            assert not (math.isnan(value) and played.finite)

    columns = {Need.VALUES: "values_N", Need.REFERENCE: "reference_N"}
    read = [column for need, column in columns.items() if need in chain_of(name, options).needs]

    @fast(name, options)
    @given(view=fuzz.views())
    def others(view: View) -> None:
        for column in read:
            broken = getattr(view, column).index_fill(0, view.scale_N.argmax()[None], math.nan)
            assert not fuzz.play(chain_of(name, options), dataclasses.replace(view, **{column: broken})).finite, column

    check()
    if read:
        others()


# ----------------------------------------------------------------------------------------------------------------------- pool side


@pytest.mark.parametrize(("name", "options"), cases(Point.ACCEPT), ids=named)
def test_a_group_on_arrival_stays_or_is_rejected_with_a_reason(name: str, options: fuzz.Options) -> None:
    @fast(name, options)
    @given(group=fuzz.arrivals())
    def check(group: GroupStats) -> None:
        verdict = build(name, options).accept(group)  # type: ignore[attr-defined]
        assert verdict is None or (isinstance(verdict, Reject) and verdict.reason)

    check()


@pytest.mark.parametrize(("name", "options"), cases(Point.SELECT), ids=named)
def test_a_selection_is_of_waiting_groups_and_of_the_size_wanted(name: str, options: fuzz.Options) -> None:
    method = build(name, options)

    @fast(name, options)
    @given(pool=fuzz.pools())
    def check(pool: tuple[PoolView, int]) -> None:
        view, want = pool
        selection = method.select(view, want)  # type: ignore[attr-defined]
        if selection is None:
            assert len(view.ids) < want, "enough groups wait, and the learner would"
            return
        assert isinstance(selection, Selection)
        mentioned = [*selection.take, *selection.reject, *selection.requeue]
        assert len(mentioned) == len(set(mentioned))
        assert set(mentioned) <= set(view.ids.tolist())
        if not selection.take:
            assert mentioned, "no batch and nobody let go"
            return
        assert len(selection.take) == want
        method.formed(selection)
        assert fuzz.same_state(fuzz.reloaded(method).state_dict(), method.state_dict())

    check()


# ------------------------------------------------------------------------------------------------------------------------ gradient


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("name", "options"), cases(Point.GRADIENT), ids=named)
def test_a_gradient_stays_finite_and_a_broken_one_stays_visible(name: str, options: fuzz.Options, seed: int) -> None:
    rng, order = np.random.default_rng(seed), random.Random(seed)
    method = build(name, options)
    for number in range(40):
        kind = order.choice(fuzz.GRADIENTS) if number % 4 else fuzz.ORDINARY
        notes = Notes()
        g = fuzz.gradient(kind, number, rng, notes)
        sound = math.isfinite(g.raw_norm)
        try:
            verdict = method.gradient(g)  # type: ignore[attr-defined]
        except ValueError as error:  # the learner refuses a broken gradient before any method sees it
            assert not sound
            verdict = Skip(str(error))
        if isinstance(verdict, Skip):
            assert verdict.reason
        else:
            assert isinstance(verdict, Keep)
            values = torch.cat([part.flatten() for part in g.parts])
            assert math.isfinite(g.norm()) is sound, f"{kind}: norm {g.norm()}"
            assert bool(torch.isfinite(values).all()) is sound, f"{kind}: {values}"
        assert list(fuzz.not_a_number(notes)) == [] or not sound
        method.after(result(applied=sound and isinstance(verdict, Keep) and number % 5 != 3))
        fresh = fuzz.reloaded(method)
        assert fuzz.same_state(fresh.state_dict(), method.state_dict())
        method = fresh if number % 7 == 0 else method
    assert all(math.isfinite(x) for x in _floats(method.state_dict())), "a broken gradient is remembered"


def _floats(state: object) -> list[float]:
    if isinstance(state, Tensor):
        return state.double().flatten().tolist()
    if isinstance(state, dict):
        return [x for value in state.values() for x in _floats(value)]
    if isinstance(state, list | tuple):
        return [x for value in state for x in _floats(value)]
    return [float(state)] if isinstance(state, int | float) else []


# ---------------------------------------------------------------------------------------------------------------------------- step


@pytest.mark.parametrize(("name", "options"), cases(Point.STEP), ids=named)
def test_a_step_is_scaled_within_bounds_or_refused_with_a_reason(name: str, options: fuzz.Options) -> None:
    @fast(name, options)
    @given(s=fuzz.steps())
    def check(s: StepView) -> None:
        chain = chain_of(name, options).learner()
        verdict = chain.step(s)
        if isinstance(verdict, Refuse):
            assert verdict.reason
        else:
            assert 0 < verdict <= 1
        chain.after(result(applied=not isinstance(verdict, Refuse)))
        for method in chain.methods:
            assert fuzz.same_state(fuzz.reloaded(method).state_dict(), method.state_dict())

    check()


# --------------------------------------------------------------------------------------------------------------------- the learner


@functools.cache
def batches() -> dict[str, Batch]:
    return hostile.hostile_batches()


@functools.cache
def _model() -> torch.nn.Module:
    return hostile.small_model()


@functools.cache
def _broken() -> torch.nn.Module:
    return hostile.broken_model()


def _parameters(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# Batches that a split into updates and micro-batches makes different.
SPLIT = ("ordinary", "both ways", "no token but one group's", "no token at all", "one rollout without a token", "nan off the actions")


@pytest.mark.parametrize("layout", [{}, {"updates_per_batch": 2, "micro_tokens": 40}], ids=["whole", "split"])
@pytest.mark.parametrize("name", [*(n for n in CASES if n in names()), *BUNDLES])
def test_updates_of_the_learner_step_to_finite_weights_or_are_refused_with_a_reason(name: str, layout: dict[str, int]) -> None:
    if name in BUNDLES:
        methods, needed = [{"name": name}], {}
    else:
        found = fuzz.entries(name, {})
        assert found is not None
        methods, needed = found
    learner, _ = make_learner(_model(), methods, **needed, optimizer={"lr": 1e-4}, **layout)
    before = _parameters(learner.model.model)
    outcomes = {}
    for kind, batch in batches().items():
        if layout and kind not in SPLIT:
            continue
        updates = learner.train(batch)
        now = _parameters(learner.model.model)
        assert bool(torch.isfinite(now).all()), kind
        assert all(u.applied is not bool(u.reason) for u in updates), kind
        assert any(u.applied for u in updates) or torch.equal(now, before), f"{kind}: refused, and yet the weights moved"
        before = now
        outcomes[kind] = updates[0].reason
    assert "non-finite" not in outcomes["ordinary"] + outcomes["nan off the actions"], outcomes
    assert outcomes["no token at all"] == "no valid action token"


@pytest.mark.parametrize("name", [n for n in CASES if n in names()])
def test_a_model_that_gives_nan_is_refused(name: str) -> None:
    found = fuzz.entries(name, {})
    assert found is not None
    learner, _ = make_learner(_broken(), found[0], **found[1])
    for update in learner.train(batches()["ordinary"]):
        assert not update.applied
        assert "non-finite" in update.reason
