import pytest

from trimtab import keyed
from trimtab.pool.plan import Plan, PlanState
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


def over(data: dict[str, tuple[str, str]]) -> Plan:
    return Plan(seed=1, prompts=5, batch_groups=2, batches=3, data=data)


def test_a_resume_over_changed_data_is_refused_by_name_unless_it_is_accepted():
    saved = over({"task.path": ("a.jsonl", "11"), "task.eval_path": ("b.jsonl", "22")}).state()
    over({"task.path": ("/elsewhere/a.jsonl", "11"), "task.eval_path": ("b.jsonl", "22")}).restore(saved)
    other = over({"task.path": ("a.jsonl", "11"), "task.eval_path": ("b.jsonl", "23")})
    with pytest.raises(TrimtabError, match=r"^task\.eval_path = 'b\.jsonl': it has changed since .* add --accept-changed-data to trimtab"):
        other.restore(saved)
    other.accept_changed_data = True
    other.restore(saved)
    assert other.state().data["task.eval_path"] == "23", "from now on, this is the data"
    old = saved.model_dump()
    del old["data"]  # a checkpoint of a version that kept no digests
    over({"task.path": ("a.jsonl", "12")}).restore(PlanState.model_validate(old))
