"""What must fit together across the rooms of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trimtab import plugins
from trimtab.config.load import override, validate
from trimtab.config.run import RunConfig
from trimtab.control.pool_side import Rescoring
from trimtab.control.protocol import Method, PoolView, Selection, SelectMethod
from trimtab.records import TrimtabError

TABLE: dict[str, Any] = {"model": "m", "task": {"kind": "reasoning_gym"}, "rollout": {"max_new_tokens": 8}}


def config(*overrides: str, methods: list[str] | None = None) -> RunConfig:
    return validate(override({**TABLE, "methods": methods or ["vcpo"]}, overrides))


@pytest.mark.parametrize(
    ("overrides", "asynchronous"),
    [
        ([], True),
        (["runtime.kind=local", "runtime.max_lag=0"], False),
        (["runtime.kind=local", "runtime.max_lag=1"], True),
        (["runtime.kind=local", "runtime.max_lag=none", "runtime.depth=2"], True),
        (["runtime.kind=lockstep"], False),
        (["runtime.kind=lockstep", "runtime.lag=1"], True),
        (["runtime.kind=lockstep", "learner.updates_per_batch=2"], True),
    ],
)
def test_a_run_is_asynchronous_where_rollouts_may_be_older_than_the_weights(overrides: list[str], asynchronous: bool) -> None:
    assert config(*overrides).asynchronous is asynchronous
    if asynchronous:
        with pytest.raises(TrimtabError, match="nothing corrects for stale rollouts"):
            config(*overrides, methods=["grpo"])
    else:
        config(*overrides, methods=["grpo"])


def test_every_chain_is_a_fresh_one() -> None:
    c = config()
    assert c.chain() is not c.chain()
    assert c.chain().methods[0] is not c.chain().methods[0]


class Chooser(SelectMethod):
    """Takes the freshest of three batches' worth of groups."""

    name, min_depth = "chooser", 2

    def select(self, pool: PoolView, want: int) -> Selection | None:
        return None


@pytest.fixture
def with_methods(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def register(*classes: type[Method]) -> None:
        found = {f"here:{c.__name__}": c for c in classes}
        targets, attribute = plugins.targets, plugins.attribute
        mine = {c.name: f"here:{c.__name__}" for c in classes}
        monkeypatch.setattr(plugins, "targets", lambda group: mine if group == "trimtab.methods" else targets(group))
        monkeypatch.setattr(plugins, "attribute", lambda target: found.get(target) or attribute(target))

    return register


def test_depth_below_what_the_policy_needs(with_methods: Callable[..., None]) -> None:
    with_methods(Chooser)
    methods = ["vcpo", "chooser"]
    with pytest.raises(TrimtabError, match=r"runtime.depth = 1: chooser needs 2 or more batches ahead; raise depth"):
        config("runtime.kind=local", "runtime.max_lag=4", "runtime.depth=1", methods=methods)
    with pytest.raises(TrimtabError, match=r"runtime.surplus = 0.0: lockstep brings what a batch takes and chooser chooses from more"):
        config("runtime.kind=lockstep", "runtime.lag=2", methods=methods)
    config("runtime.kind=local", "runtime.max_lag=4", "runtime.depth=2", methods=methods)
    config("runtime.kind=lockstep", "runtime.lag=1", "runtime.surplus=0.5", methods=methods)


def test_the_age_of_leftovers_is_bounded_only_where_there_are_any() -> None:
    assert config("runtime.kind=lockstep", "runtime.surplus=0.5", "runtime.max_lag=none").asynchronous
    with pytest.raises(TrimtabError, match=r"runtime.max_lag = 3: lockstep without surplus leaves nothing over"):
        config("runtime.kind=lockstep", "runtime.max_lag=3")
    with pytest.raises(TrimtabError, match=r"runtime.max_lag = 1: every group is 2 old when it is due"):
        config("runtime.kind=lockstep", "runtime.lag=2", "runtime.surplus=0.5", "runtime.max_lag=1")


def test_forgetting_scores_are_computed_as_the_methods_ask_for_them() -> None:
    def rescoring(**options: Any) -> RunConfig:
        return validate({**TABLE, "methods": ["vcpo", {"name": "pace", **options}]})

    assert config().rescoring is config().rescore is None
    assert (rescoring().rescoring, rescoring().rescore) == (Rescoring("swap", "relu"), "relu")
    assert rescoring(forgetting="learner", phi="k3").rescoring == Rescoring("learner", "k3")
    assert rescoring(forgetting="learner").rescore is None
    assert rescoring(forgetting="none").rescoring is None
