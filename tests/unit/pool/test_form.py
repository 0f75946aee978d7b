"""The learner's side: batches, orders, selectors, ages."""

import pytest

from support.pool_chain import pool_chain
from trimtab.control.protocol import Selection
from trimtab.pool.results import Finished, Formed, LetGo, NotYet, Ticket
from trimtab.records import Slot, TrimtabError


def slots(formed):
    return [g.slot.index for g in formed.batch.groups]


def advance(pool):
    formed = pool.form()
    assert isinstance(formed, Formed)
    pool.consumed(pool.version + 1)
    return formed


def test_a_batch_is_in_order_of_slot_whoever_was_faster(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=1)
    tickets = admit_all(pool)[0]
    for i in (3, 1):
        deliver(pool, tickets[i])
    formed = pool.form()
    assert slots(formed) == [1, 3]
    assert (formed.batch.number, formed.batch.version) == (0, 0)


def test_fifo_waits_for_the_oldest(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=1, order="fifo")
    tickets = admit_all(pool)[0]
    for i in (1, 2, 3):
        deliver(pool, tickets[i])
    waiting = pool.form()
    assert [s.slot for s in waiting.stragglers] == [tickets[0].slot]
    assert waiting.why == "(0, 0) at w"
    deliver(pool, tickets[0])
    assert slots(advance(pool)) == [0, 1]
    assert slots(advance(pool)) == [2, 3]


def test_ready_takes_arrivals_until_a_straggler_must_come(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=1, order="ready")
    tickets = admit_all(pool)[0]
    for i in (3, 1):
        deliver(pool, tickets[i])
    assert slots(advance(pool)) == [1, 3]
    for ticket in admit_all(pool)[0]:  # 4 and 5, of version 1
        deliver(pool, ticket)
    deliver(pool, tickets[2])
    waiting = pool.form()  # 4 and 5 are here, but version 0 has no place after this batch
    assert isinstance(waiting, NotYet)
    assert [(s.slot.index, s.worker, s.charge) for s in waiting.stragglers] == [(0, "w", 0)]
    deliver(pool, tickets[0])
    formed = advance(pool)
    assert slots(formed) == [0, 2]
    assert [a.oldest for a in formed.ages] == [1, 1]


def test_ready_prefers_arrivals_and_keeps_places_for_what_is_owed(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=1, batch_groups=3, order="ready")
    tickets = admit_all(pool)[0]
    for i in (0, 1, 2, 3):
        deliver(pool, tickets[i])
    assert slots(advance(pool)) == [0, 1, 2]
    new = admit_all(pool)[0]
    for ticket in new:  # before 4 and 5
        deliver(pool, ticket)
    for i in (4, 5):
        deliver(pool, tickets[i])
    assert slots(advance(pool)) == [3, 4, 5]  # all three of version 0 are owed, though younger ones came first
    assert slots(advance(pool)) == [6, 7, 8]


def test_fifo_goes_by_first_token_not_by_admission(make_pool, deliver):
    pool = make_pool(max_lag=2, order="fifo")
    first = [pool.admit("w", 0, 0.0) for _ in range(3)]
    for ticket in first[:2]:
        deliver(pool, ticket)
    advance(pool)
    young, old = pool.admit("fast", 1, 0.0), pool.admit("slow", 0, 0.0)
    for ticket in (first[2], young, old):
        deliver(pool, ticket)
    assert slots(advance(pool)) == [2, 4]  # version 0 before version 1


def test_waiting_says_what_is_missing(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=0)
    assert pool.form() == NotYet((), 2, "2 more groups to be admitted")
    ticket = pool.admit("w", 0, 0.0)
    assert pool.form().why == "(0, 0) at w and 1 more groups to be admitted"
    pool.lost("w")
    assert pool.form().why == "(0, 0) in line for a worker and 1 more groups to be admitted"
    assert pool.admit("v", 0, 0.0).slot == ticket.slot


def test_a_skipped_batch_returns_its_slots_and_keeps_the_version(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=1)
    tickets = admit_all(pool)[0]
    for ticket in tickets:
        deliver(pool, ticket)
    pool.form()
    pool.consumed(0)
    assert (pool.version, pool.batches) == (0, 1)
    assert len(admit_all(pool)[0]) == 2  # no version was spent: version 0 has four places again
    assert pool.form().batch.version == 0


def test_calls_out_of_turn_are_errors(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=0)
    with pytest.raises(RuntimeError, match="no batch is in training"):
        pool.consumed(1)
    for ticket in admit_all(pool)[0]:
        deliver(pool, ticket)
    pool.form()
    with pytest.raises(RuntimeError, match="a batch is in training"):
        pool.form()
    with pytest.raises(ValueError, match="cannot leave the learner at 2"):
        pool.consumed(2)
    pool.consumed(1)


def test_the_run_ends_with_a_whole_batch(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=4, batches=3)
    while not isinstance(answer := pool.form(), Finished):
        for ticket in admit_all(pool)[0]:
            deliver(pool, ticket)
        if isinstance(answer, Formed):
            pool.consumed(pool.version + 1)
    assert pool.trained() == [Slot(0, i) for i in range(6)]
    assert pool.facts(0.0).outstanding == 0


def test_age_is_that_of_the_oldest_token_and_splits_exactly(make_pool, make_group, admit_all, deliver):
    """B4: a rollout that spans versions 3 to 7 and is trained on at 8 has age 5."""
    pool = make_pool(max_lag=5, batch_groups=1, batches=20, prompts=50)
    for _ in range(3):
        deliver(pool, pool.admit("w", pool.version, 0.0))
        advance(pool)
    spanning = pool.admit("w", 3, 0.0)
    for _ in range(4):
        deliver(pool, pool.admit("v", pool.version, 0.0))
        advance(pool)
    assert pool.version == 7
    pool.deliver("w", make_group(spanning.slot, ((3, 5, 7), (7,)), attempt=0))
    deliver(pool, pool.admit("v", 7, 0.0))
    pool.chain = pool_chain(select=TakeLast())
    advance(pool)  # the other one first: the spanning group waits for a version
    pool.chain = pool_chain()
    (aged,) = pool.form().ages
    assert aged.oldest == 5
    assert aged.generation == 7 - (5 + 7) / 2  # entered at 7; its members' mean versions are 5 and 7
    assert aged.waiting == 1


class Commits:
    """Remembers what it was told has formed."""

    def formed(self, selection):
        self.committed = selection


class TakeLast(Commits):
    def select(self, pool, want):
        return Selection(tuple(pool.ids[-want:].tolist()))


class Scripted(Commits):
    """Takes, rejects and requeues the given positions of the view."""

    def __init__(self, take, reject=(), requeue=()):
        self.script, self.views = (take, reject, requeue), []

    def select(self, pool, want):
        self.views.append(pool)
        return Selection(*(tuple(pool.ids[list(part)].tolist()) for part in self.script))


def test_what_a_selector_strands_expires(make_pool, admit_all, make_group, deliver):
    """Two groups of version 0 are left for the batch of version 1; the selector takes two younger ones."""
    pool = make_pool(max_lag=1)
    tickets = admit_all(pool)[0]
    for ticket in tickets[:2]:
        deliver(pool, ticket)
    advance(pool)
    for ticket in tickets[2:]:
        pool.deliver("w", make_group(ticket.slot, ((0, 0, 0), (0,)), scores=[1.0, 0.0]))
    for ticket in admit_all(pool)[0]:
        deliver(pool, ticket)
    pool.chain = pool_chain(select=TakeLast())
    formed = pool.form()
    assert slots(formed) == [4, 5]
    assert formed.let_go == tuple(LetGo(slot=Slot(0, i), reason="expired", score=0.5, length=2.0) for i in (2, 3))
    (decision,) = formed.notes.decisions
    assert (decision.method, decision.what, decision.amount) == ("pool", "expired", 2.0)
    facts = pool.facts(0.0)
    assert facts.reasons["dropped"] == {"expired": 2}
    assert (facts.tallies["expired"].length, facts.tallies["expired"].score) == (4.0, 1.0)
    assert (facts.tallies["trained"].groups, facts.tallies["trained"].length) == (2, 2.0)  # those of the first batch


def test_groups_that_are_let_go_pay_what_is_owed(make_pool, admit_all, deliver):
    """Four groups of version 0 wait and two of them must leave at version 1: those that the selector rejects do, the others stay."""
    pool = make_pool(max_lag=2)
    tickets = admit_all(pool)[0]
    for ticket in tickets[:2]:
        deliver(pool, ticket)
    advance(pool)
    for ticket in (*tickets[2:], *admit_all(pool)[0]):
        deliver(pool, ticket)
    pool.chain = pool_chain(select=Scripted(take=(4, 5), reject=(0, 1)))
    formed = advance(pool)
    assert slots(formed) == [6, 7]
    assert [(gone.slot.index, gone.reason) for gone in formed.let_go] == [(2, "let go"), (3, "let go")]
    pool.chain = pool_chain()
    assert slots(advance(pool)) == [4, 5]


def test_a_selector_waits_for_running_groups_it_would_strand(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=1)
    tickets = admit_all(pool)[0]
    for ticket in tickets[:2]:
        deliver(pool, ticket)
    advance(pool)
    deliver(pool, tickets[2])
    for ticket in admit_all(pool)[0]:
        deliver(pool, ticket)
    pool.chain = pool_chain(select=TakeLast())
    waiting = pool.form()
    assert [s.slot for s in waiting.stragglers] == [tickets[3].slot]
    assert pool.facts(0.0).counts["dropped"] == 0  # a poll commits nothing
    pool.expire(1e9)
    formed = pool.form()
    assert slots(formed) == [4, 5]
    assert [gone.slot.index for gone in formed.let_go] == [2]


def test_a_selector_lets_go_and_requeues(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=2, select=Scripted(take=(1, 2), reject=(0,), requeue=(3,)))
    tickets = admit_all(pool)[0]
    for ticket in tickets[:4]:
        deliver(pool, ticket)
    formed = pool.form()
    assert slots(formed) == [1, 2]
    assert [(g.slot.index, g.reason, g.requeued) for g in formed.let_go] == [(0, "let go", False), (3, "requeued", True)]
    pool.consumed(1)
    again = pool.admit("w", 1, 0.0)
    assert (again.slot, again.attempt) == (tickets[3].slot, 1)


def test_a_selector_sees_the_waiting_groups_in_order_of_arrival(make_pool, make_group, admit_all, deliver):
    selector = Scripted(take=(0, 1))
    pool = make_pool(max_lag=1, select=selector)
    tickets = admit_all(pool)[0]
    for i in (2, 0):
        deliver(pool, tickets[i])
    advance(pool)
    deliver(pool, tickets[3])
    pool.deliver("w", make_group(tickets[1].slot, ((0, 1), (1, 1)), scores=[1.0, 0.0]))
    pool.form()
    view = selector.views[-1]
    assert view.order.tolist() == [2, 3]
    assert view.ids.tolist() == [3, 1]
    assert view.entered.tolist() == [1, 1]
    assert view.mean_version.tolist() == [0.0, 0.75]
    assert view.oldest.tolist() == [0, 0]
    assert view.interrupted.tolist() == [False, True]
    assert view.score.tolist() == [0.0, 0.5]
    assert view.length.tolist() == [1.0, 2.0]
    assert (view.now, view.batch_groups) == (1, 2)


@pytest.mark.parametrize("take", [(0,), (0, 0), (0, 1, 2)])
def test_a_selection_that_is_none_is_refused(make_pool, admit_all, deliver, take):
    pool = make_pool(max_lag=1, select=Scripted(take=take))
    for ticket in admit_all(pool)[0]:
        deliver(pool, ticket)
    with pytest.raises(ValueError, match="a selection takes 2 different waiting groups"):
        pool.form()


def test_a_selector_that_can_never_act_is_told_to_raise_depth(make_pool, admit_all, deliver):
    class Never(Commits):
        def select(self, pool, want):
            return None

    pool = make_pool(max_lag=1, select=Never())
    tickets = admit_all(pool)[0]
    for ticket in tickets[:3]:
        deliver(pool, ticket)
    assert [s.slot for s in pool.form().stragglers] == [tickets[3].slot]
    deliver(pool, tickets[3])
    with pytest.raises(TrimtabError, match=r"runtime.depth = 1: the selector forms no batch of 4 waiting groups"):
        pool.form()


def test_facts_say_who_waits_for_whom(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=2, depth=1)
    tickets, _ = admit_all(pool, now_s=10.0)
    deliver(pool, tickets[0])
    pool.admit("v", 0, 12.0)
    pool.form()
    facts = pool.facts(25.0)
    assert facts.waits == (
        "learner waits for (0, 1) at w for 15 s, (0, 2) at w for 15 s, (0, 3) at w for 15 s",
        "v waits: 4 groups are outstanding, depth 1 allows 4",
        "w waits: 4 groups are outstanding, depth 1 allows 4",
    )
    assert facts.counts == {"admitted": 0, "running": 3, "waiting": 1, "trained": 0, "dropped": 0, "failed": 0, "training": 0}
    assert facts.profile == ((0, 4, 6),)
    deliver(pool, tickets[1])
    pool.form()
    facts = pool.facts(25.0)
    assert facts.counts["training"] == 2
    assert facts.counts["waiting"] == 0
    assert facts.profile == ((0, 2, 4),)
    assert not any(w.startswith("learner") for w in facts.waits)


def test_the_worked_example_of_the_docs(make_pool, admit_all, deliver):
    """docs/pool-theorem.md, B = 2, k = 1."""
    pool = make_pool(max_lag=1)
    (a, b, c, d), _ = admit_all(pool)
    for ticket in (b, d):
        deliver(pool, ticket)
    assert slots(pool.form()) == [1, 3]
    assert pool.facts(0.0).profile == ((0, 2, 2),)
    pool.consumed(1)
    assert not isinstance(pool.admit("slow", 0, 0.0), Ticket)
    (e, f), _ = admit_all(pool)
    assert pool.facts(0.0).profile == ((0, 2, 2), (1, 4, 4))
    for ticket in (e, f, c):
        deliver(pool, ticket)
    assert [s.slot for s in pool.form().stragglers] == [a.slot]
    deliver(pool, a)
    formed = pool.form()
    assert slots(formed) == [0, 2]
    assert [aged.oldest for aged in formed.ages] == [1, 1]


def test_the_worked_example_had_the_deadline_come(make_pool, admit_all, deliver):
    pool = make_pool(max_lag=1, straggler_deadline_s=10.0)
    (a, b, c, d), _ = admit_all(pool)
    for ticket in (b, d):
        deliver(pool, ticket)
    advance(pool)
    (e, f), _ = admit_all(pool, now_s=8.0)
    for ticket in (e, f, c):
        deliver(pool, ticket)
    assert [s.slot for s in pool.expire(12.0)] == [a.slot]
    assert slots(pool.form()) == [2, 4]
