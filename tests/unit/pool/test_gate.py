"""Admission by totals: lockstep's surplus, beside the pool's own rule."""

from trimtab.control.protocol import Reject, Selection
from trimtab.pool.admission import surplus_groups
from trimtab.pool.results import Blocked, BlockedBy, Finished, Formed
from trimtab.records import Slot


def advance(pool, applied=True):
    formed = pool.form()
    assert isinstance(formed, Formed)
    pool.consumed(pool.version + applied)
    return formed


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
