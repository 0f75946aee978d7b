"""The controller with workers that die, hang, lie and forget: the run goes on, or ends with one sentence that names the culprit."""

import time
from collections.abc import Callable

import pytest

from support.near_worker import OPTIONS
from support.tiny import CHARS
from trimtab.records import Slot, StoppedByRule, TrimtabError
from trimtab.weights.publish import PublishError

PLAN = [Slot(*divmod(i, 13)) for i in range(20 * OPTIONS.prompts_per_batch)]


def slots(loop) -> list[Slot]:
    return sorted(group.slot for formed in loop.trained for group in formed.batch.groups)


def until(condition: Callable[[], bool], within: float = 10.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.005)


def hang(loop, name: str = "worker-0") -> None:
    """Let a worker hang in the middle of its work."""
    loop.faults[name].go.clear()


# ---------------------------------------------------------------------------------------------------------------- death


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dead_workers_groups_are_generated_by_another(make_loop, workers: int) -> None:
    loop = make_loop(workers=workers, restarts=3)
    loop.start()
    for at in (2, 5, 9):
        loop.run(at - len(loop.trained))
        loop.workers[-1].interrupt()
    loop.run()
    assert slots(loop) == PLAN
    assert len(loop.workers) == workers + 3
    assert max(a.oldest for f in loop.trained for a in f.ages) <= 3
    until(lambda: loop.faults["worker-0"].held[-1] == 20)  # the newcomer, too, ends up with the newest version


def test_a_worker_that_breaks_is_replaced_a_bounded_number_of_times(make_loop) -> None:
    loop = make_loop(restarts=2)
    loop.start()
    loop.run(2)
    loop.faults["worker-0"].raises = MemoryError("no more of it")
    with pytest.raises(StoppedByRule, match=r"^worker-0 died \(MemoryError: no more of it\) after 2 restarts \(runtime.restarts\)"):
        loop.run()
    assert len(loop.workers) == 3


def test_an_error_that_is_the_users_to_mend_ends_the_run_at_once(make_loop) -> None:
    loop = make_loop()
    loop.start()
    loop.faults["worker-0"].raises = TrimtabError("task.path: row 7 has no prompt")
    with pytest.raises(TrimtabError, match=r"^worker-0: task.path: row 7 has no prompt$") as error:
        loop.run()
    assert error.value.exit_code == 2
    assert len(loop.workers) == 1


def test_a_rule_that_stops_a_worker_stops_the_run_as_a_rule(make_loop) -> None:
    loop = make_loop()
    loop.start()
    loop.faults["worker-0"].raises = StoppedByRule("verifier.max_failures = 64: that many calls in a row failed")
    with pytest.raises(StoppedByRule, match=r"^worker-0: verifier.max_failures") as error:
        loop.run()
    assert error.value.exit_code == 3


def test_a_worker_that_dies_while_the_learner_waits_to_publish_does_not_hold_it_up(make_loop) -> None:
    loop = make_loop(restarts=1)
    loop.start()
    loop.run(3)
    until(lambda: loop.faults["worker-0"].held[-1] == 3)
    hang(loop)
    assert loop.batch()  # its publication starts; the worker does not answer
    loop.workers[0].interrupt()
    loop.run()
    assert slots(loop) == PLAN


def test_a_worker_that_stops_in_the_middle_of_a_message_is_replaced(make_loop) -> None:
    loop = make_loop(restarts=1)
    loop.start()
    loop.run(2)
    loop.workers[0].half_a_message()
    loop.run()
    assert slots(loop) == PLAN
    assert len(loop.workers) == 2


# ---------------------------------------------------------------------------------------------------------------- hanging


def test_a_worker_that_does_not_come_up_is_named(make_loop) -> None:
    loop = make_loop(workers=2, start_deadline_s=0.3)
    loop.faults["worker-1"].up.clear()
    with pytest.raises(StoppedByRule, match=r"runtime.start_deadline_s = 0.3: worker-1 did not report ready"):
        loop.start()


def test_a_worker_that_does_not_stage_is_named(make_loop) -> None:
    loop = make_loop(workers=2, publish_deadline_s=0.5)
    loop.start()
    loop.run(3)
    hang(loop, "worker-1")
    with pytest.raises(PublishError, match=r"^publication of version \d+: no answer to stage from worker-1 within 0.5 s; the old version"):
        loop.run()


def test_where_no_group_comes_back_the_stragglers_and_their_worker_are_named(make_loop) -> None:
    loop = make_loop(progress_deadline_s=0.5)
    loop.faults["worker-0"].swallow = set(PLAN)
    loop.start()
    with pytest.raises(StoppedByRule, match=r"^runtime.progress_deadline_s = 0.5: no group .*: learner waits for \(0, 0\) at worker-0 for"):
        loop.run()


def test_a_swallowed_group_is_named(make_loop) -> None:
    loop = make_loop(progress_deadline_s=0.5, max_lag=1)
    loop.faults["worker-0"].swallow = {PLAN[5]}
    loop.start()
    with pytest.raises(StoppedByRule, match=r"learner waits for \(0, 5\) at worker-0"):
        loop.run()


def test_a_swallowed_group_fails_at_the_stragglers_deadline_and_the_next_slot_takes_its_place(make_loop) -> None:
    loop = make_loop(straggler_deadline_s=0.3, max_lag=1)
    loop.faults["worker-0"].swallow = {PLAN[5], PLAN[11]}
    loop.start()
    loop.run()
    assert slots(loop) == sorted({*PLAN, Slot(3, 1), Slot(3, 2)} - {PLAN[5], PLAN[11]})[: len(PLAN)]
    assert loop.pool.facts(0.0).reasons["failed"] == {"deadline": 2}


# ---------------------------------------------------------------------------------------------------------------- lies


def test_a_digest_that_differs_ends_the_run_and_the_old_version_serves(make_loop) -> None:
    loop = make_loop(workers=2)
    loop.start()
    loop.run(3)
    until(lambda: [f.held[-1] for f in loop.faults.values()] == [3, 3])
    loop.faults["worker-1"].corrupt = True
    with pytest.raises(PublishError, match="publication of version 4: worker-1 staged bytes with digest 000000000000"):
        loop.run()
    assert [f.held[-1] for f in loop.faults.values()] == [3, 3]


def test_a_probe_gap_at_the_start_is_refused_as_bad_input(make_loop) -> None:
    loop = make_loop()
    loop.faults["worker-0"].probe = 0.25
    with pytest.raises(TrimtabError, match=r"learner.probe_gap = 0.001: worker-0 and learner differ by 2.50e-01 in a log-prob") as error:
        loop.start()
    assert error.value.exit_code == 2


@pytest.mark.parametrize("gap", [0.25, float("nan")])
def test_a_probe_gap_later_stops_the_run(make_loop, gap: float) -> None:
    loop = make_loop()
    loop.start()
    loop.run(2)
    loop.faults["worker-0"].probe = gap
    with pytest.raises(StoppedByRule, match=r"learner.probe_gap = 0.001: worker-0 and learner differ by") as error:
        loop.run()
    assert error.value.exit_code == 3


def test_tokens_of_a_version_that_does_not_exist_yet_break_the_controller_not_the_learner(make_loop) -> None:
    loop = make_loop()
    loop.faults["worker-0"].future = 7
    with pytest.raises(StoppedByRule, match="the controller broke: ValueError: worker-0 delivers version 7, the learner stands at 0"):
        loop.start() or loop.run()
    with pytest.raises(StoppedByRule, match="the controller broke"):  # whatever it calls next
        loop.publish()


# ---------------------------------------------------------------------------------------------------------------- bad groups


def test_a_poison_prompt_is_tried_a_bounded_number_of_times_and_set_aside(make_loop) -> None:
    loop = make_loop(max_attempts=3)
    real = loop.pool.plan.row

    def row(slot: Slot) -> int:
        return 13 if slot == PLAN[4] else real(slot)  # row 13 cannot be had

    loop.pool.plan.row = row
    loop.start()
    loop.run()
    assert PLAN[4] not in slots(loop)
    assert len(slots(loop)) == len(PLAN)
    facts = loop.pool.facts(0.0)
    assert facts.set_aside == (13,)
    assert list(facts.reasons["failed"]) == ["row 13 cannot be had"]


def test_verifier_errors_are_retried_with_new_samples(make_loop) -> None:
    """The verifier raises on responses that begin with 9: such an attempt fails, the next one draws other tokens."""
    loop = make_loop(60, max_attempts=6)
    loop.start()
    loop.run()
    groups = [g for f in loop.trained for g in f.batch.groups]
    assert len(groups) == 60 * OPTIONS.prompts_per_batch
    assert {g.attempt for g in groups} >= {0, 1}
    nine = 3 + CHARS.index("9")
    assert not any(s.tokens[s.action_mask][0] == nine for g in groups for r in g.rollouts for s in r.segments)
    assert loop.pool.facts(0.0).counts["failed"] == 0
