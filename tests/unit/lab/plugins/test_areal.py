"""AReaL's gate, a rule of admission that only the laboratory uses, beside the pool's own."""

import random

import pytest

from trimtab.control.protocol import Reject
from trimtab.lab.plugins.areal import capacity
from trimtab.pool.options import PoolOptions
from trimtab.pool.results import Blocked, BlockedBy, Formed, Ticket
from trimtab.records import StoppedByRule, TrimtabError


def advance(pool, applied=True):
    formed = pool.form()
    assert isinstance(formed, Formed)
    pool.consumed(pool.version + applied)
    return formed


def test_the_capacity_is_the_published_formula():
    # eta 2, version 3, batches of 8: (2 + 3 + 1) 8 = 48 may have been admitted
    assert capacity(2, 3, 8, accepted=30, running=10) == 8
    assert capacity(0, 0, 8, accepted=0, running=8) == 0
    assert capacity(0, 0, 8, accepted=8, running=8) == -8


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
            assert capacity(eta, pool.version, B, accepted, len(running)) >= 0
        if pool.batches < 30:  # the plan's end comes before
            assert capacity(eta, pool.version, B, accepted, len(running)) <= 0
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
