"""Admission by totals: AReaL's gate and lockstep's surplus, beside the pool's own rule."""

import random

import pytest

from trimtab.control.protocol import Reject, Selection
from trimtab.pool.admission import areal_capacity, surplus_groups
from trimtab.pool.options import PoolOptions
from trimtab.pool.results import Blocked, BlockedBy, Finished, Formed, Ticket
from trimtab.records import Slot, StoppedByRule, TrimtabError


def advance(pool, applied=True):
    formed = pool.form()
    assert isinstance(formed, Formed)
    pool.consumed(pool.version + applied)
    return formed


def test_areal_capacity_is_the_published_formula():
    # eta 2, version 3, batches of 8: (2 + 3 + 1) 8 = 48 may have been admitted
    assert areal_capacity(2, 3, 8, accepted=30, running=10) == 8
    assert areal_capacity(0, 0, 8, accepted=0, running=8) == 0
    assert areal_capacity(0, 0, 8, accepted=8, running=8) == -8


@pytest.mark.parametrize("seed", range(3))
def test_the_areal_gate_admits_exactly_its_capacity(make_pool, make_group, seed):
    """Random arrivals, drops on arrival, failures, batches; accepted and running counted by the test."""
    rng, eta, B = random.Random(seed), 2, 2

    class Odd:
        def accept(self, group):
            return Reject("odd") if group.scores_R[0] else None

    pool = make_pool(max_lag=eta, admission="areal", order="fifo", batches=40, prompts=500, accept=[Odd()])
    running, accepted = [], 0
    for _ in range(300):
        while isinstance(ticket := pool.admit("w", pool.version, 0.0), Ticket):
            running.append(ticket)
            assert areal_capacity(eta, pool.version, B, accepted, len(running)) >= 0
        if pool.batches < 30:  # the plan's end comes before
            assert areal_capacity(eta, pool.version, B, accepted, len(running)) <= 0
            assert pool.free() == 0
        ticket = running.pop(rng.randrange(len(running)))
        if rng.random() < 0.2:
            pool.fail("w", ticket.slot, ticket.attempt, "broken")
            continue
        odd = float(rng.random() < 0.2)
        pool.deliver("w", make_group(ticket.slot, ((ticket.held,), (ticket.held,)), attempt=ticket.attempt, scores=[odd, odd]))
        accepted += not odd
        while isinstance(formed := pool.form(), Formed):
            assert max(a.oldest for a in formed.ages) <= eta  # in this order, with workers that hold the newest weights
            pool.consumed(pool.version + 1)
        if pool.batches == 40:
            return


def test_a_skipped_batch_returns_its_slots_but_closes_the_areal_gate(make_pool, admit_all, deliver):
    """Counting totals against the version: the batch is in ``accepted`` for good and the version never rises for it."""
    pools = {kind: make_pool(max_lag=1, admission=kind) for kind in ("lag", "areal")}
    for pool in pools.values():
        for ticket in admit_all(pool)[0]:
            deliver(pool, ticket)
        advance(pool, applied=False)
    ours, areal = (admit_all(pool) for pool in pools.values())
    assert (len(ours[0]), len(areal[0])) == (2, 0)
    assert areal[1] == Blocked(BlockedBy.LAG, "4 groups came and 0 are running: totals allow none at version 0")
    advance(pools["areal"], applied=False)
    assert admit_all(pools["areal"])[0] == []
    with pytest.raises(StoppedByRule, match="areal': 2 batches were consumed but the version is 0: each skipped batch has closed the gate"):
        pools["areal"].form()


def test_the_areal_gate_does_not_see_what_a_worker_holds(make_pool, admit_all, deliver):
    pools = {kind: make_pool(max_lag=1, admission=kind, order="ready") for kind in ("lag", "areal")}
    for pool in pools.values():
        for _ in range(3):
            for ticket in admit_all(pool)[0]:
                deliver(pool, ticket)
            advance(pool)
    assert pools["lag"].admit("slow", 0, 0.0).by is BlockedBy.BEHIND
    stale = [pools["areal"].admit("slow", 0, 0.0) for _ in range(2)]
    for ticket in stale:
        deliver(pools["areal"], ticket)
    ages = [a.oldest for _ in range(2) for a in advance(pools["areal"]).ages]
    assert max(ages) > 1  # of max_lag = 1


def test_the_areal_gate_counts_up_to_a_number():
    with pytest.raises(TrimtabError, match=r"runtime.max_lag = 'none': admission = 'areal' counts up to it"):
        PoolOptions(max_lag="none", depth=3, admission="areal")


# ------------------------------------------------------------------------------------------------------------------------ surplus


def test_surplus_groups():
    assert [surplus_groups(8, 0.5, t, 0) for t in range(3)] == [0, 12, 24]
    assert [surplus_groups(8, 0.3, t, 2) for t in range(5)] == [0, 8, 16, 27, 38]
    assert surplus_groups(10, 0.1, 1, 0) == 11  # not 12: 10 * 1.1 is a little more than 11


def test_surplus_brings_so_many_a_batch_whatever_becomes_of_them(make_pool, admit_all, deliver):
    class Picky:
        """Takes two, lets the others go or has them again, in turn."""

        def select(self, pool, want):
            ids = tuple(pool.ids.tolist())
            return Selection(ids[:want], ids[want:]) if pool.now % 2 else Selection(ids[:want], requeue=ids[want : want + 1])

        def formed(self, selection): ...

    def drop(slot):
        return slot.index % 7 == 3

    class Sevens:
        def accept(self, group):
            return Reject("seven") if group.scores_R[0] else None

    pool = make_pool(max_lag="none", surplus=1.0, batches=6, prompts=100, select=Picky(), accept=[Sevens()])
    for batch in range(6):
        fit = 0
        while tickets := admit_all(pool)[0]:
            for ticket in tickets:
                seven = float(drop(ticket.slot))
                fit += not seven
                deliver(pool, ticket, scores=[seven, seven])
        assert fit == 4, batch  # requeued ones included, those dropped on arrival replaced
        assert pool.free() == 0
        advance(pool)
    assert isinstance(admit_all(pool)[1], Blocked)
    assert admit_all(pool)[1].by is BlockedBy.PLAN
    pool.form()
    assert pool.facts(0.0).outstanding <= 1  # a requeued slot that nobody runs


def test_what_a_surplus_leaves_over_is_dropped_at_the_end(make_pool, admit_all, deliver):
    pool = make_pool(max_lag="none", surplus=0.5, batches=4, order="fifo", prompts=100)
    for _ in range(4):
        for ticket in admit_all(pool)[0]:
            deliver(pool, ticket)
        advance(pool)
    assert pool.trained() == [Slot(0, i) for i in range(8)]
    assert isinstance(pool.form(), Finished)
    facts = pool.facts(0.0)
    assert facts.outstanding == 0
    assert facts.reasons["dropped"] == {"surplus": 4}


def test_the_bound_holds_beside_a_surplus(make_pool, admit_all, deliver):
    """FIFO with a bound: leftovers fill the places, and less is brought."""
    pool = make_pool(max_lag=2, surplus=1.0, batches=20, prompts=200, order="fifo")
    brought, ages = [], []
    for _ in range(20):
        tickets = admit_all(pool)[0]
        brought.append(len(tickets))
        for ticket in tickets:
            deliver(pool, ticket)
        ages += [a.oldest for a in advance(pool).ages]
    assert max(ages) == 2
    assert brought[:4] == [4, 4, 2, 2]
