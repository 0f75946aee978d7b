"""Checkpoints: the pool goes on as if the workers had died and nothing else had happened."""

import json

import pytest

from trimtab.pool.ledger import Ledger
from trimtab.pool.plan import Plan
from trimtab.pool.results import Fate, Formed
from trimtab.records import Slot, TrimtabError


def saved(pool):
    return json.loads(json.dumps(pool.state_dict())), pool.waiting_groups()


@pytest.fixture
def busy(make_pool, admit_all, deliver):
    """Version 3 of lag 2: groups waiting, running, retried, dropped behind them."""

    def make(**options):
        pool = make_pool(**{"max_lag": 2, **options})
        for version in (1, 2, 3):
            for ticket in admit_all(pool)[0]:
                deliver(pool, ticket)
            pool.form()
            pool.consumed(version)
        a, _b = admit_all(pool)[0]
        pool.fail("w", a.slot, 0, "x")
        return pool

    return make


def test_free_slots_equal_those_of_the_uninterrupted_run(busy, make_pool):
    """A2: admission counts what is outstanding, not what was admitted since the start."""
    pool = busy()
    resumed = make_pool(max_lag=2, incarnation=1)
    resumed.load_state_dict(*saved(pool))
    assert (resumed.version, resumed.batches) == (3, 3)
    assert [resumed.free(h) for h in range(4)] == [pool.free(h) for h in range(4)]
    pool.lost("w")
    assert resumed.state_dict() == pool.state_dict()


def test_running_slots_come_again_first_at_the_same_attempt(busy, make_pool):
    pool = busy()
    resumed = make_pool(max_lag=2, incarnation=1)
    resumed.load_state_dict(*saved(pool))
    tickets = [resumed.admit("w", 3, 0.0) for _ in range(2)]
    assert [(t.slot, t.attempt) for t in tickets] == [(Slot(1, 0), 1), (Slot(1, 1), 0)]  # the retry keeps its new attempt


def test_a_batch_in_training_is_saved_as_waiting(busy, make_pool):
    pool = busy()
    formed = pool.form()
    resumed = make_pool(max_lag=2, incarnation=1)
    resumed.load_state_dict(*saved(pool))
    again = resumed.form()
    assert isinstance(again, Formed)
    assert again.batch == formed.batch
    assert again.ages == formed.ages
    resumed.consumed(4)
    assert len(set(resumed.trained())) == 8


def test_waiting_groups_of_the_old_incarnation_stay_and_its_late_ones_are_refused(busy, make_pool, deliver):
    pool = busy()
    resumed = make_pool(max_lag=2, incarnation=1)
    resumed.load_state_dict(*saved(pool))
    assert len(resumed.waiting_groups()) == 4
    ticket = resumed.admit("w", 3, 0.0)
    assert deliver(resumed, ticket, incarnation=0).fate is Fate.REFUSED
    assert deliver(resumed, ticket, incarnation=1).fate is Fate.WAITING


def test_tallies_and_poison_survive(busy, make_pool):
    pool = busy(max_attempts=1)
    resumed = make_pool(max_lag=2, max_attempts=1)
    resumed.load_state_dict(*saved(pool))
    assert len(pool.facts(0.0).set_aside) == 1
    assert resumed.facts(0.0).set_aside == pool.facts(0.0).set_aside
    assert resumed.facts(0.0).tallies == pool.facts(0.0).tallies
    assert resumed.facts(0.0).reasons == pool.facts(0.0).reasons


def test_a_lower_max_lag_is_refused_while_groups_need_more(busy, make_pool):
    pool = busy()
    with pytest.raises(TrimtabError, match=r"runtime.max_lag = 1: the checkpoint's groups need 2; give 2 or more"):
        make_pool(max_lag=1).load_state_dict(*saved(pool))
    make_pool(max_lag=3).load_state_dict(*saved(pool))


def test_missing_groups_are_refused(busy, make_pool):
    state, groups = saved(busy())
    with pytest.raises(TrimtabError, match="3 groups, its ledger names 4"):
        make_pool(max_lag=2).load_state_dict(state, groups[1:])


def test_ledger_and_plan_work_alone():
    """A fixed schedule needs no admission: it draws, runs, and trains by itself."""
    plan, ledger = Plan(seed=1, prompts=6, batch_groups=2, batches=3), Ledger()
    while plan.wants(len(ledger.trained()), ledger.outstanding):
        batch = [plan.draw()[0] for _ in range(2)]
        for slot in batch:
            ledger.admit(slot, plan.row(slot))
            ledger.run(slot, "lockstep", charge=0, now_s=0.0)
            ledger.arrive(slot, oldest=0, entered=0)
            ledger.train(slot)
    assert ledger.trained() == [Slot(0, i) for i in range(6)]
