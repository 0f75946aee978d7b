"""A chain's two sides: no state is shared, and whatever the pool's side lets go is a decision."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from support.pool_chain import pool_chain
from support.pools import pool_view
from support.views import setting
from trimtab.control.chain import Chain
from trimtab.control.protocol import (
    AcceptMethod,
    GroupStats,
    MethodOptions,
    Notes,
    PoolView,
    Reject,
    Selection,
    SelectMethod,
    Side,
    State,
    StepMethod,
    StepResult,
    StepView,
)
from trimtab.control.registry import ChainMember, MethodEntry, build, method_class, names
from trimtab.pool.results import Fate, Formed, Ticket
from trimtab.records import Decision

ACCEPTS = [n for n in names() if issubclass(method_class(n), AcceptMethod)]
SELECTS = [n for n in names() if issubclass(method_class(n), SelectMethod)]


def chain(*listed: str | dict[str, Any]) -> Chain:
    return Chain.resolve([MethodEntry.model_validate({"name": m} if isinstance(m, str) else m) for m in listed], setting())


def result(batch: int = 0) -> StepResult:
    return StepResult(applied=True, reason="", multiplier=1.0, batch_id=batch, mini_step=0, raw_norm=1.0)


class Both(AcceptMethod, StepMethod):
    """Counts on either side."""

    name = "both"

    def __init__(self) -> None:
        super().__init__(MethodOptions())
        self.accepted = self.stepped = self.told = 0

    def accept(self, group: GroupStats) -> Reject | None:
        self.accepted += 1
        return None

    def step(self, s: StepView) -> float:
        self.stepped += 1
        return 1.0

    def after(self, result: StepResult) -> None:
        self.told += 1

    def state_dict(self) -> State:
        return {"accepted": self.accepted, "stepped": self.stepped, "told": self.told}


# ---------------------------------------------------------------------------------------------------------------------------- sides


def test_every_method_stands_on_the_sides_of_its_points() -> None:
    whole = chain("vcpo", "dynamic_sampling", "pace")
    pool, learner = whole.pool(), whole.learner()
    assert [m.name for m in pool.methods] == ["dynamic_sampling", "pace"]
    assert {m.name for m in pool.methods} | {m.name for m in learner.methods} == {m.name for m in whole.methods}
    assert all(Side.LEARNER in m.sides() for m in learner.methods)
    assert pool.state_dict().keys() == {"dynamic_sampling", "pace"}
    assert not pool.state_dict().keys() & learner.state_dict().keys()


def test_a_method_of_both_sides_is_two_that_share_nothing() -> None:
    whole = chain("vcpo")
    whole.members.append(ChainMember(Both(), ""))
    pool, learner = whole.pool(), whole.learner()
    assert not {id(m) for m in pool.methods} & {id(m) for m in learner.methods}
    notes = Notes()
    pool.accept(stats(notes), notes)
    learner.after(result())
    learner.after(result())
    assert pool.state_dict()["both"] == {"accepted": 1, "stepped": 0, "told": 0}
    assert learner.state_dict()["both"] == {"accepted": 0, "stepped": 0, "told": 2}
    pool.after(result())
    assert pool.state_dict()["both"] == {"accepted": 1, "stepped": 0, "told": 1}


def test_no_built_in_method_stands_on_both_sides() -> None:
    """What one would keep on one side the other would not see: a reader of either must not be misled."""
    assert [n for n in names() if len(method_class(n).sides()) > 1] == []


# ------------------------------------------------------------------------------------------------------------------------ decisions


def stats(recorder: Notes, scores: tuple[float, ...] = (1.0, 1.0), oldest: int = 0, now: int = 0) -> GroupStats:
    n = len(scores)
    return GroupStats(
        scores_R=np.array(scores),
        lengths_R=np.ones(n, np.int64),
        oldest=oldest,
        mean_version=float(oldest),
        now=now,
        truncated_R=np.zeros(n, np.bool_),
        recorder=recorder,
    )


@pytest.mark.parametrize("name", ACCEPTS)
def test_every_rejection_on_arrival_is_a_decision_and_is_counted(name: str) -> None:
    side, notes = pool_chain([build(name, {})]), Notes()
    for _ in range(3):
        assert side.accept(stats(notes, oldest=0, now=50), notes) is not None  # equal scores, and old
    assert side.accept(stats(notes, (0.0, 1.0), oldest=50, now=50), notes) is None
    (decision,) = notes.decisions
    assert (decision.method, decision.point, decision.what, decision.amount) == (name, "accept", "rejected", 3.0)
    assert decision.why
    assert notes.metrics == {"pool/rejected": (3.0, 4.0)}


@pytest.mark.parametrize("name", SELECTS)
@pytest.mark.parametrize("requeue", [False, True])
def test_whatever_a_selector_lets_go_is_a_decision(name: str, requeue: bool) -> None:
    knobs = {"beta": 0.0} if "beta" in method_class(name).Options.model_fields else {}
    knobs |= {"requeue": True} if requeue and "requeue" in method_class(name).Options.model_fields else {}
    view = pool_view([[(float(i % 3), float(i % 9), 0.1 * i)] for i in range(40)], want=8)
    side = pool_chain(select=build(name, knobs))  # type: ignore[arg-type]
    selection = side.select(view, 8)
    assert selection is not None
    assert isinstance(view.recorder, Notes)
    found = {d.what: d.amount for d in view.recorder.decisions if (d.method, d.point) == (name, "select") and d.why}
    assert found == {what: len(ids) for what, ids in (("rejected", selection.reject), ("requeued", selection.requeue)) if ids}
    assert bool(found) is (name != "freshest")  # the control lets nothing go itself


class Late(SelectMethod):
    """Lets the first group go and asks for more, then takes what there is."""

    name = "late"

    def __init__(self) -> None:
        super().__init__(MethodOptions())
        self.asked = 0

    def select(self, pool: PoolView, want: int) -> Selection | None:
        ids = tuple(pool.ids.tolist())
        self.asked += 1
        pool.recorder.note(Decision(method="late", point="select", what="asked", amount=float(self.asked)))
        return Selection((), ids[:1], why="it came first") if self.asked == 1 else Selection(ids[:want]) if len(ids) >= want else None


def test_a_selector_that_only_lets_go_is_told_with_the_next_batch(make_pool, admit_all, deliver) -> None:
    pool = make_pool(max_lag=3, select=Late())
    for ticket in admit_all(pool)[0][:2]:
        deliver(pool, ticket)
    assert not isinstance(pool.form(), Formed)
    said = [("asked", 1.0), ("rejected", 1.0)]
    assert [(d.what, d.amount) for d in pool.untold()] == said
    assert pool.facts(0.0).counts["dropped"] == 1
    state, groups = pool.state_dict(), pool.waiting_groups()
    pool = make_pool(max_lag=3, select=Late())  # it survives a restart
    pool.load_state_dict(state, groups)
    pool.chain.selector.asked = 1
    assert [(d.what, d.amount) for d in pool.untold()] == said
    for ticket in admit_all(pool)[0][:3]:
        deliver(pool, ticket)
    formed = pool.form()
    assert isinstance(formed, Formed)
    assert [(d.what, d.amount) for d in formed.notes.decisions] == [*said, ("asked", 2.0)]
    assert pool.untold() == ()


def test_a_poll_that_changes_nothing_notes_nothing(make_pool, admit_all, deliver) -> None:
    late = Late()
    late.asked = 1
    pool = make_pool(max_lag=1, select=late)
    tickets = admit_all(pool)[0]
    for ticket in tickets[:2]:
        deliver(pool, ticket)
    assert isinstance(pool.form(), Formed)
    pool.consumed(1)
    deliver(pool, tickets[2])
    for _ in range(3):
        assert not isinstance(pool.form(), Formed)
    assert pool.untold() == ()


def test_what_is_left_over_at_the_end_is_a_decision_too(make_pool, admit_all, deliver) -> None:
    pool = make_pool(max_lag="none", surplus=1.0, batches=2, prompts=100)
    for _ in range(2):
        for ticket in admit_all(pool)[0]:
            deliver(pool, ticket)
        assert isinstance(pool.form(), Formed)
        pool.consumed(pool.version + 1)
    pool.form()
    assert [(d.method, d.what, d.amount) for d in pool.untold()] == [("pool", "surplus", 4.0)]


# -------------------------------------------------------------------------------------------------------------------------- threads


@pytest.fixture
def eager_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switching")
def test_accepting_in_one_thread_and_hearing_of_updates_in_another_lose_nothing(make_pool, make_group) -> None:
    """The controller delivers under the lock; the learner tells its own methods without it, and the pool's with ``consumed``.

    Every group is constant but every fourth, and three constant ones may go between two batches. So whatever the threads do:
    the pool drops what it says it dropped, and never more than the budget between two batches.
    """
    budget, batches = 3, 150
    whole = chain("vcpo", {"name": "dynamic_sampling", "max_refill": budget})
    pool_side, learner_side = whole.pool(), whole.learner()
    pool = make_pool(max_lag=4, batches=batches, prompts=50)
    pool.chain = pool_side
    lock, done = threading.Lock(), threading.Event()
    dropped: Counter[int] = Counter()  # by the batches consumed when it happened
    told: list[Decision] = []
    rejected = 0.0

    def controller() -> None:
        for scores in cycle(([0.0, 1.0], *([[1.0, 1.0]] * 3))):
            ticket = None
            while not isinstance(ticket, Ticket):
                if done.is_set():
                    return
                with lock:
                    ticket = pool.admit("w", pool.version, 0.0)
            group = make_group(ticket.slot, ((ticket.held,), (ticket.held,)), attempt=ticket.attempt, scores=scores)
            with lock:
                before = pool.batches
                if pool.deliver("w", group).fate is Fate.DROPPED:
                    dropped[before] += 1

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(controller)
        try:
            while pool.batches < batches and not other.done():
                with lock:
                    formed = pool.form()
                if not isinstance(formed, Formed):
                    continue
                told += formed.notes.decisions
                rejected += formed.notes.metrics.get("pool/rejected", (0.0, 0.0))[0]
                for _ in range(5):  # updates
                    time.sleep(0.0005)
                    learner_side.after(result(formed.batch.number))  # no lock: nothing of it is the pool's
                with lock:
                    pool.consumed(pool.version + 1, [result(formed.batch.number)])
        finally:
            done.set()
        other.result()
    assert max(dropped.values()) <= budget
    told += pool.untold()
    gone = sum(dropped.values())
    assert pool.facts(0.0).counts["dropped"] == gone > batches / 2
    assert sum(d.amount for d in told) == gone
    assert {(d.method, d.point, d.what) for d in told} == {("dynamic_sampling", "accept", "rejected")}
    assert rejected == gone - sum(d.amount for d in pool.untold())
    trained = pool.trained()
    assert len(trained) == len(set(trained)) == 2 * batches
