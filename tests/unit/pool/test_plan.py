import pytest

from trimtab import keyed
from trimtab.pool.plan import Plan
from trimtab.records import Slot, TrimtabError


def test_draws_walk_through_the_epochs_by_keyed_permutation():
    plan = Plan(seed=5, prompts=4, batch_groups=2, batches=10)
    drawn = [plan.draw() for _ in range(12)]
    assert [slot for slot, _ in drawn] == [Slot(epoch, i) for epoch in range(3) for i in range(4)]
    assert [row for _, row in drawn] == [int(r) for epoch in range(3) for r in keyed.permutation(5, epoch, 4)]
    for epoch in range(3):  # every prompt once an epoch
        assert sorted(row for slot, row in drawn if slot.epoch == epoch) == [0, 1, 2, 3]
    assert plan.row(Slot(0, 2)) == drawn[2][1]  # an old epoch's row is still known


def test_wants_slots_until_the_target_is_trained_or_outstanding():
    plan = Plan(seed=0, prompts=4, batch_groups=3, batches=2)
    assert plan.target == 6
    assert plan.wants(trained=0, outstanding=5)
    assert not plan.wants(trained=3, outstanding=3)
    assert not Plan(seed=0, prompts=4, batch_groups=3, batches=0).wants(0, 0)


def test_resume_goes_on_where_it_was_and_may_extend_the_run():
    plan = Plan(seed=1, prompts=5, batch_groups=2, batches=3)
    for _ in range(4):
        plan.draw()
    longer = Plan(seed=1, prompts=5, batch_groups=2, batches=30)
    longer.restore(plan.state())
    assert [longer.draw() for _ in range(9)] == [plan.draw() for _ in range(9)]


@pytest.mark.parametrize(("other", "names"), [({"seed": 2}, "seed = 2"), ({"prompts": 6}, "prompts = 6")])
def test_resume_over_other_data_is_refused(other, names):
    plan = Plan(seed=1, prompts=5, batch_groups=2, batches=3)
    with pytest.raises(TrimtabError, match=names):
        Plan(**{"seed": 1, "prompts": 5, "batch_groups": 2, "batches": 3, **other}).restore(plan.state())


@pytest.mark.parametrize("bad", [{"prompts": 0}, {"batch_groups": 0}, {"batches": -1}])
def test_an_impossible_plan_is_refused(bad):
    with pytest.raises(TrimtabError):
        Plan(**{"seed": 1, "prompts": 5, "batch_groups": 2, "batches": 3, **bad})
