"""The two rules of the pool, checked in every reachable state of a small loop.

The model is the loop seen from the learner: groups are (age of charge, ready or not), versions are relative to the learner's, so
the state space is finite. The environment does whatever it likes: workers hold any version, groups finish in any order or never,
tokens may turn out younger than charged, groups are dropped, batches are any that the rule allows, steps are skipped.
"""

from itertools import combinations
from typing import NamedTuple

import pytest

from support.pools import pool_view
from trimtab.control.registry import build
from trimtab.pool import choose
from trimtab.pool.admission import Bounds, Profile
from trimtab.pool.ledger import LiveSlot, SlotState
from trimtab.records import Slot

NOW = 100  # the learner's version; only differences matter


class State(NamedTuple):
    running: tuple[int, ...]  # ages of charge, sorted
    ready: tuple[int, ...]
    training: tuple[int, ...]  # the batch in training

    @property
    def turn(self):
        return NOW + bool(self.training)

    @property
    def outstanding(self):
        return len(self.running) + len(self.ready) + len(self.training)


def profile_of(ages):
    profile = Profile()
    for age in ages:
        profile.add(NOW - age)
    return profile


def without(ages, age):
    i = ages.index(age)
    return ages[:i] + ages[i + 1 :]


def plus(ages, age):
    return tuple(sorted((*ages, age)))


def room(bounds, state, age):
    return bounds.room(profile_of((*state.running, *state.ready)), NOW - age, state.turn)


def naive_room(bounds, state, age):
    """The tempting rule: count the batch in training as outstanding and compare with the learner's own version."""
    return bounds.room(profile_of((*state.running, *state.ready, *state.training)), NOW - age, NOW)


def batches(bounds, state):
    """Every set of ready groups after which O(<=v) <= B (v + k - c) for all v, counted literally."""
    size, lag = bounds.batch_groups, bounds.max_lag
    for take in set(combinations(state.ready, size)):
        rest = [*state.running, *state.ready]
        for age in take:
            rest.remove(age)
        if all(sum(a >= age for a in rest) <= max(0, size * (lag - age)) for age in range(-1, lag + 3)):
            yield take


def successors(bounds, state, rule):
    for age in range(bounds.max_lag + 2):
        if state.outstanding < bounds.most and rule(bounds, state, age) > 0:
            yield state._replace(running=plus(state.running, age))
    for age in set(state.running):
        yield state._replace(running=without(state.running, age))  # failed
        for oldest in range(age + 1):  # finished; its oldest token may be younger than charged
            yield state._replace(running=without(state.running, age), ready=plus(state.ready, oldest))
    for age in set(state.ready):
        yield state._replace(ready=without(state.ready, age))  # dropped
    if state.training:
        aged = State(tuple(a + 1 for a in state.running), tuple(a + 1 for a in state.ready), ())
        yield from (state._replace(training=()), aged)  # skipped, applied
    else:
        for take in batches(bounds, state):
            ready = state.ready
            for age in take:
                ready = without(ready, age)
            yield State(state.running, ready, take)


def explore(bounds, rule=room):
    start = State((), (), ())
    seen, todo = {start}, [start]
    while todo:
        for after in successors(bounds, todo.pop(), rule):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return seen


def invariant_holds(bounds, state):
    """(I), counted literally."""
    ages, taken = (*state.running, *state.ready), bool(state.training)
    return all(
        sum(a >= age for a in ages) <= max(0, bounds.batch_groups * (bounds.max_lag - age + 1 - taken)) for age in range(bounds.max_lag + 3)
    )


def selectors():
    """Fresh ones, eager: PACE and random rejection let go whatever exceeds the batch."""
    eager = {"w_star": 0.0, "beta": 0.0}
    return [build(*case) for case in (("pace", eager), ("random_reject", eager), ("freshest", {}), ("max_age", {"max_age": 1}))]


def selected(method, live, waiting, size, debts):
    view = pool_view([[(0.0, NOW - e.charge, 0.0)] for e in waiting], now=NOW, want=size, ids=[e.serial for e in waiting])
    selection = method.select(view, size)
    return None if selection is None else choose.selected(selection, view, {e.serial: e for e in waiting}, live, size, debts)


def left_after(choice, live):
    gone = {e.serial for e in (*choice.take, *choice.reject, *choice.requeue, *choice.expired)}
    return [NOW - e.charge for e in live if e.serial not in gone]


def entries(state):
    order = [(age, SlotState.RUNNING) for age in state.running] + [(age, SlotState.WAITING) for age in state.ready]
    return [LiveSlot(Slot(0, i), i, serial=i, state=s, charge=NOW - age, arrival=i) for i, (age, s) in enumerate(order)]


@pytest.mark.parametrize(
    ("size", "lag", "depth"),
    [(1, 0, 0), (2, 0, 0), (1, 1, 1), (1, 2, 2), (1, 3, 3), (1, 3, 1), (2, 1, 1), (2, 1, 0), (3, 1, 1), (2, 2, 2), (2, 2, 1), (2, 3, 3)],
)
def test_every_reachable_state_is_safe_and_live(size, lag, depth):
    bounds = Bounds(size, lag, depth)
    states = explore(bounds)
    oldest = max(age for state in states for age in state.training)
    assert oldest == lag if depth > 0 else oldest <= lag  # never more, and the bound is reached
    for state in states:
        ages = (*state.running, *state.ready)
        assert invariant_holds(bounds, state)
        assert state.outstanding <= size * (depth + 1)
        if state.training:
            continue
        debts, live = bounds.owed(profile_of(ages), NOW), entries(state)
        waiting = [e for e in live if e.state is SlotState.WAITING]
        legal = {tuple(sorted(take)) for take in batches(bounds, state)}
        for order in (choose.ready(live, waiting, size, debts), choose.fifo(live, size)):
            # what an order takes is legal, and when nothing is running it takes a batch or a fresh worker gets a group
            assert not order.take or tuple(sorted(NOW - e.charge for e in order.take)) in legal
            assert order.take or state.running or (len(ages) < bounds.most and room(bounds, state, 0) > 0)
        ready_takes = choose.ready(live, waiting, size, debts).take
        assert bool(ready_takes) == bool(legal)  # it waits only where no legal batch exists
        if legal:  # and takes the earliest arrivals that make one
            earliest = min(t for t in combinations(range(len(waiting)), size) if tuple(sorted(NOW - waiting[i].charge for i in t)) in legal)
            assert [e.serial for e in ready_takes] == [waiting[i].serial for i in earliest]


def test_admission_rule_is_the_weakest_possible():
    """One admission more than the rule allows, and some schedule has to train a token older than max_lag or drop the group."""
    bounds = Bounds(2, 2, 2)
    for state in explore(bounds):
        for age in range(bounds.max_lag + 1):
            if room(bounds, state, age) > 0:
                continue
            ages = sorted((*state.running, *state.ready, age), reverse=True)
            # everything is ready at once, every batch is applied, and the oldest go first: the best that can happen
            late = [a + bool(state.training) + i // bounds.batch_groups for i, a in enumerate(ages)]
            assert max(late) > bounds.max_lag


def test_counting_the_batch_in_training_against_the_learners_own_version_is_unsafe():
    """max_lag 1: while a batch of version c trains, a worker that still holds c - 1 is given a group; then the batch is applied."""
    bounds = Bounds(1, 1, 1)
    assert any(not s.training and max((*s.running, *s.ready), default=0) == 2 for s in explore(bounds, naive_room))
    assert all(max((*s.running, *s.ready), default=0) <= 1 for s in explore(bounds))


@pytest.mark.parametrize(("size", "lag", "depth"), [(1, 0, 0), (1, 2, 2), (1, 3, 1), (2, 1, 1), (3, 1, 1), (2, 2, 2), (2, 2, 1)])
def test_selectors_never_break_the_bound_and_never_stall(size, lag, depth):
    """In every state in which they are asked: what stays fits into the later batches, and somebody can move."""
    bounds, methods = Bounds(size, lag, depth), selectors()
    for state in explore(bounds):
        if state.training or len(state.ready) < size:
            continue
        live = entries(state)
        waiting = [e for e in live if e.state is SlotState.WAITING]
        debts = bounds.owed(profile_of((*state.running, *state.ready)), NOW)
        for method in methods:
            choice = selected(method, live, waiting, size, debts)
            assert choice is not None, "enough wait"
            if choice.take:
                left = left_after(choice, live)
                assert len(choice.take) == size
                assert all(sum(a >= age for a in left) <= max(0, size * (lag - age)) for age in range(-1, lag + 3))
            elif choice.late:  # it waits, for running groups that could be trained in time, and commits nothing
                assert state.running
                assert not [*choice.reject, *choice.requeue, *choice.expired]
            else:  # max_age lets go, and then a batch can be formed or a group admitted
                left = left_after(choice, live)
                assert len(left) < len(live)
                assert state.running or len(left) >= size or room(bounds, State((), tuple(sorted(left)), ()), 0) > 0
