"""The worker's side: tickets, deliveries, failures."""

import random

import numpy as np
import pytest

from trimtab.control.protocol import Reject
from trimtab.pool.results import BlockedBy, Delivery, Fate, Finished, Formed, Ticket
from trimtab.records import Outcome, Slot, StoppedByRule, StopReason, TrimtabError


def test_lag_zero_admits_exactly_one_batch_a_version(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=0)
    tickets, blocked = admit_all(pool)
    assert [t.slot for t in tickets] == [Slot(0, 0), Slot(0, 1)]
    assert blocked.by is BlockedBy.DEPTH
    for ticket in tickets:
        deliver(pool, ticket)
    assert isinstance(pool.form(), Formed)
    assert admit_all(pool)[0] == []  # the batch in training still counts
    pool.consumed(1)
    assert pool.admit("slow", 0, 0.0).by is BlockedBy.BEHIND  # these weights are a version old
    assert len(admit_all(pool)[0]) == 2


def test_rows_are_those_of_the_plan(make_pool, admit_all):
    pool = make_pool(max_lag=2)
    tickets, _ = admit_all(pool)
    assert [t.prompt for t in tickets] == [pool.plan.row(t.slot) for t in tickets]
    assert len({t.prompt for t in tickets}) == len(tickets) == 6


def test_depth_counts_the_batch_in_training(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=3, depth=1)
    tickets, blocked = admit_all(pool)
    assert (len(tickets), blocked.by) == (4, BlockedBy.DEPTH)
    assert blocked.why == "4 groups are outstanding, depth 1 allows 4"
    for ticket in tickets:
        deliver(pool, ticket)
    pool.form()
    assert admit_all(pool)[0] == []
    pool.consumed(1)
    assert len(admit_all(pool)[0]) == 2


def test_a_lagging_worker_is_charged_what_it_holds(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=1)
    for ticket in admit_all(pool)[0]:
        deliver(pool, ticket)
    pool.form()
    pool.consumed(1)  # two groups of version 0 are left, the batch of version 1 has two places
    assert pool.admit("slow", 0, 0.0).by is BlockedBy.LAG
    assert pool.admit("fast", 1, 0.0).held == 1


def test_a_younger_first_token_frees_the_older_place(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=1)
    tickets = admit_all(pool)[0]
    for ticket in tickets[:2]:
        deliver(pool, ticket)
    pool.form()
    pool.consumed(1)
    assert pool.admit("slow", 0, 0.0).by is BlockedBy.LAG
    deliver(pool, tickets[2], version=1)  # it had waited in the worker's queue for the new weights
    assert pool.admit("slow", 0, 0.0).held == 0


def test_a_failed_attempt_is_first_in_line_and_charged_anew(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=2, depth=1)
    tickets = admit_all(pool)[0]
    assert pool.fail("w", tickets[1].slot, 0, "environment raised") == Delivery(tickets[1].slot, Fate.RETRIED, "environment raised")
    for ticket in (tickets[0], tickets[2]):
        deliver(pool, ticket)
    pool.form()
    pool.consumed(1)
    again = pool.admit("v", 1, 5.0)
    assert (again.slot, again.attempt, again.prompt, again.held) == (tickets[1].slot, 1, tickets[1].prompt, 1)
    assert {v: n for v, n, _ in pool.facts(5.0).profile} == {0: 1, 1: 2}


def test_a_poison_prompt_fails_after_max_attempts_and_frees_its_slot(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=0, batches=1, max_attempts=3)
    poison, other = admit_all(pool)[0]
    fates = []
    for attempt in range(3):
        fates.append(pool.fail("w", poison.slot, attempt, "context too long").fate)
        ticket = pool.admit("w", 0, 0.0)
    assert fates == [Fate.RETRIED, Fate.RETRIED, Fate.FAILED]
    assert ticket.slot == Slot(0, 2)  # the next index takes its place in the last batch
    facts = pool.facts(0.0)
    assert facts.set_aside == (poison.prompt,)
    assert facts.reasons["failed"] == {"context too long": 1}
    for t in (other, ticket):
        deliver(pool, t)
    pool.form()
    pool.consumed(1)
    assert isinstance(pool.form(), Finished)
    assert pool.trained() == [other.slot, ticket.slot]


def test_a_lost_workers_slots_come_first_at_the_same_attempt(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=2)
    held = [pool.admit(worker, 0, 0.0) for worker in ("a", "b", "a", "b", "a")]
    deliver(pool, held[2])
    assert pool.lost("a") == [held[0].slot, held[4].slot]
    again = [pool.admit("c", 0, 1.0) for _ in range(3)]
    assert [t.slot for t in again] == [held[0].slot, held[4].slot, Slot(0, 5)]
    assert {t.attempt for t in again} == {0}
    late = deliver(pool, held[0])  # the dead worker's delivery was still in the queue
    assert late.fate is Fate.REFUSED
    assert deliver(pool, again[0]).fate is Fate.WAITING
    assert pool.facts(1.0).refused == 1


def test_a_leftover_of_a_restarted_worker_is_refused_if_its_charge_does_not_cover_it(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=2)
    first = admit_all(pool)[0]
    for ticket in first[:2]:
        deliver(pool, ticket)
    pool.form()
    pool.consumed(1)
    pool.lost("w")
    again = pool.admit("w", 1, 0.0)  # the restarted worker has the new weights
    assert again.slot == first[2].slot
    leftover = deliver(pool, first[2])
    assert (leftover.fate, leftover.reason) == (Fate.REFUSED, "has a token of version 0, w was charged with 1")
    assert deliver(pool, again).fate is Fate.WAITING


def test_a_late_delivery_of_an_earlier_attempt_is_refused(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=0)
    first = admit_all(pool)[0][0]
    pool.fail("w", first.slot, 0, "timed out")
    again = pool.admit("w", 0, 0.0)
    assert (again.slot, again.attempt) == (first.slot, 1)
    assert deliver(pool, first).fate is Fate.REFUSED
    assert pool.fail("w", first.slot, 0, "timed out").fate is Fate.REFUSED
    assert deliver(pool, again).fate is Fate.WAITING


def test_groups_of_a_dead_incarnation_are_refused(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=0, incarnation=2)
    ticket = admit_all(pool)[0][0]
    assert deliver(pool, ticket, incarnation=1).fate is Fate.REFUSED
    assert deliver(pool, ticket, incarnation=2).fate is Fate.WAITING


@pytest.mark.parametrize(
    "broken",
    [
        {"outcomes": [Outcome.CORRECT, Outcome.ERROR]},
        {"stops": [StopReason.EOS, StopReason.ABORTED]},
        {"scores": [1.0, float("nan")]},
        {"members": ((0,), ())},
    ],
)
def test_members_that_are_no_evidence_leave_the_group(make_pool, make_group, admit_all, broken):
    strict = make_pool(max_lag=0)
    ticket = admit_all(strict)[0][0]
    answer = strict.deliver("w", make_group(ticket.slot, **broken))
    assert (answer.fate, answer.reason) == (Fate.RETRIED, "fewer than 2 valid rollouts")

    lenient = make_pool(max_lag=0, min_group=1)
    ticket = admit_all(lenient)[0][0]
    assert lenient.deliver("w", make_group(ticket.slot, **broken)).fate is Fate.WAITING
    (kept,) = lenient.waiting_groups()
    assert [r.member for r in kept.rollouts] == [0]


def test_min_group_above_the_group_size_is_refused(make_pool):
    with pytest.raises(TrimtabError, match=r"rollout.min_group = 3: a group has 2 rollouts"):
        make_pool(min_group=3)


def test_the_deadline_fails_a_straggler_and_names_it(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=1, straggler_deadline_s=10.0)
    early = pool.admit("a", 0, 0.0)
    pool.admit("b", 0, 5.0)
    assert pool.expire(10.0) == []
    (gone,) = pool.expire(10.5)
    assert (gone.slot, gone.worker, gone.since_s) == (early.slot, "a", 0.0)
    assert pool.facts(10.5).reasons["failed"] == {"deadline": 1}
    assert deliver(pool, early).fate is Fate.REFUSED
    assert len(admit_all(pool, now_s=10.5)[0]) == 3  # of 4 places b has one


class Recorder:
    def __init__(self, reason=None):
        self.seen, self.reason = [], reason

    def accept(self, group):
        self.seen.append(group)
        return Reject(self.reason) if self.reason else None


def test_methods_accept_in_order_and_a_reject_frees_the_slot(make_pool, make_group, admit_all):
    first, second, third = Recorder(), Recorder("zero variance"), Recorder()
    pool = make_pool(max_lag=0, accept=[first, second, third])
    ticket = admit_all(pool)[0][0]
    group = make_group(ticket.slot, ((0, 0, 0), (0,)), scores=[1.0, 0.5], stops=[StopReason.LENGTH, StopReason.EOS])
    assert pool.deliver("w", group) == Delivery(ticket.slot, Fate.DROPPED, "zero variance")
    (stats,) = first.seen
    np.testing.assert_array_equal(stats.scores_R, [1.0, 0.5])
    np.testing.assert_array_equal(stats.lengths_R, [3, 1])
    np.testing.assert_array_equal(stats.truncated_R, [True, False])
    assert (stats.oldest, stats.now) == (0, 0)
    assert third.seen == []
    assert pool.admit("w", 0, 0.0).slot == Slot(0, 2)
    tally = pool.facts(0.0).tallies["zero variance"]
    assert (tally.groups, tally.length, tally.score) == (1, 2.0, 0.75)


def test_ninety_percent_zero_variance_does_not_stall(make_pool, admit_all, deliver):
    rng = random.Random(0)

    class Often:
        def accept(self, group):
            return Reject("zero variance") if rng.random() < 0.9 else None

    pool = make_pool(max_lag=2, batches=50, accept=[Often()])
    version = 0
    while not isinstance(answer := pool.form(), Finished):
        if isinstance(answer, Formed):
            version += 1
            pool.consumed(version)
        tickets = admit_all(pool)[0]
        assert tickets or isinstance(answer, Formed)
        for ticket in tickets:
            deliver(pool, ticket)
    facts = pool.facts(0.0)
    assert facts.counts["trained"] == 100
    assert facts.counts["dropped"] > 500
    assert facts.outstanding == 0


def test_a_run_that_only_drops_is_stopped_with_the_cause(make_pool, deliver):
    pool = make_pool(max_lag=0, accept=[Recorder("zero variance")], max_fruitless=5)
    for _ in range(10):
        deliver(pool, pool.admit("w", 0, 0.0))
    with pytest.raises(StoppedByRule, match=r"10 groups in a row .* \(dropped: zero variance \(10\)\)"):
        pool.admit("w", 0, 0.0)


def test_admission_closes_at_the_plan_and_a_drop_opens_it(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=9, batches=2)
    tickets, blocked = admit_all(pool)
    assert (len(tickets), blocked.by) == (4, BlockedBy.PLAN)
    pool.fail("w", tickets[0].slot, 0, "x")
    assert pool.admit("w", 0, 0.0).slot == tickets[0].slot  # a retry keeps its slot
    assert pool.admit("w", 0, 0.0).by is BlockedBy.PLAN
    pool.expire(1e9)
    assert [t.slot for t in admit_all(pool)[0]] == [Slot(0, i) for i in range(4, 8)]


def test_publishing_before_consumed_is_an_error(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=1)
    with pytest.raises(ValueError, match="w holds version 1, the learner stands at 0"):
        pool.admit("w", 1, 0.0)
    ticket = pool.admit("w", 0, 0.0)
    with pytest.raises(ValueError, match="w delivers version 1, the learner stands at 0"):
        deliver(pool, ticket, version=1)
    assert deliver(pool, ticket).fate is Fate.WAITING


def test_calibration_comes_first_at_lag_zero(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=2, calibration=2)
    for version in (1, 2):
        tickets = admit_all(pool)[0]
        assert len(tickets) == 2
        for ticket in tickets:
            deliver(pool, ticket)
        assert {aged.oldest for aged in pool.form().ages} == {0}
        assert admit_all(pool)[0] == []
        pool.consumed(version)
    assert len(admit_all(pool)[0]) == 6


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_free_counts_what_admit_gives(make_pool, admit_all, deliver, lag):
    pool = make_pool(max_lag=lag)
    free = pool.free()
    tickets = admit_all(pool)[0]
    assert len(tickets) == free == 2 * (lag + 1)
    assert pool.free() == 0
    pool.lost("w")
    assert pool.free() == 0  # these slots are in line, new ones have no place
    assert all(isinstance(pool.admit("v", 0, 0.0), Ticket) for _ in range(free))


def test_free_asks_what_the_worker_holds(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=1)
    (a, b, c, d), _ = admit_all(pool)
    for ticket in (a, b):
        deliver(pool, ticket)
    pool.form()
    pool.consumed(1)
    deliver(pool, c)
    pool.lost("w")
    assert (pool.free(0), pool.free(1)) == (0, 2)  # version 0 has two places: c has one, d's is kept for it
    assert pool.admit("w", 1, 0.0).slot == d.slot
    assert pool.free(0) == 1
    assert deliver(pool, pool.admit("w", 0, 0.0)).fate is Fate.WAITING
    pool.form()
    assert (pool.free(0), pool.free(1)) == (0, 1)  # the batch of version 1 is taken


def test_a_row_that_cannot_be_run_fails_at_once_and_never_comes_again(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=0, batches=30, prompts=5, max_attempts=3)
    hopeless, _ = admit_all(pool)[0]
    assert pool.fail("w", hopeless.slot, 0, "too long", retry=False).fate is Fate.FAILED
    assert pool.facts(0.0).set_aside == (hopeless.prompt,)
    resumed = make_pool(max_lag=0, batches=30, prompts=5)
    resumed.load_state_dict(pool.state_dict(), pool.waiting_groups())
    pool.lost("w")
    for one in (pool, resumed):
        drawn = []
        for version in range(1, 13):
            for ticket in admit_all(one)[0]:
                drawn.append(ticket.prompt)
                deliver(one, ticket)
            one.form()
            one.consumed(version)
        assert hopeless.prompt not in drawn
        assert len(drawn) >= 23


def test_a_pool_none_of_whose_rows_can_be_run_ends(make_pool):
    pool = make_pool(max_lag=0, prompts=3, max_fruitless=100)
    for _ in range(3):
        ticket = pool.admit("w", 0, 0.0)
        pool.fail("w", ticket.slot, 0, "too long", retry=False)
    with pytest.raises(StoppedByRule, match=r"none of the 3 rows can be run \(failed: too long \(3\)\)"):
        pool.admit("w", 0, 0.0)
