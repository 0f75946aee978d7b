"""The controller with workers that work: the plan is trained, ages stay within the bound, everyone serves the newest version."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from support.near_worker import OPTIONS, stages
from trimtab.records import Group, Slot


def ages(loop) -> list[int]:
    return [aged.oldest for formed in loop.trained for aged in formed.ages]


def slots(loop) -> list[Slot]:
    return sorted(group.slot for formed in loop.trained for group in formed.batch.groups)


def until(condition: Callable[[], bool], within: float = 10.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.005)


@pytest.mark.parametrize(
    "options",
    [
        {"max_lag": 3},
        {"max_lag": 3, "workers": 2},
        {"max_lag": 0},
        {"max_lag": 0, "workers": 3},
        {"max_lag": "none", "depth": 2, "workers": 2},
        {"max_lag": 4, "depth": 1},
        {"max_lag": 2, "order": "fifo", "workers": 2},
    ],
    ids=str,
)
def test_the_plan_is_trained_exactly_and_nothing_is_too_old(make_loop, options: dict[str, object]) -> None:
    loop = make_loop(30, **options)
    loop.start()
    loop.run()
    trained = slots(loop)
    assert trained == [Slot(*divmod(i, 13)) for i in range(30 * OPTIONS.prompts_per_batch)]  # no attempt fails here
    assert trained == loop.pool.trained()
    if loop.options.max_lag is not None:
        assert max(ages(loop)) <= loop.options.max_lag
    if loop.options.max_lag == 0:
        assert set(ages(loop)) == {0}
    assert all(faults.most <= OPTIONS.held_batches * OPTIONS.prompts_per_batch for faults in loop.faults.values())
    for faults in loop.faults.values():
        assert faults.held == sorted(set(faults.held))  # never twice, never back
    until(lambda: all(f.held[-1] == 30 for f in loop.faults.values()))


def test_a_skipped_batch_publishes_nothing_and_the_run_goes_on(make_loop) -> None:
    loop = make_loop(12, max_lag=1)
    loop.start()
    for number in range(12):
        assert loop.batch(applied=number % 3 == 0)
    assert not loop.batch()
    assert stages(loop.workers[0]) == [0, 1, 2, 3, 4]
    assert max(ages(loop)) <= 1


def test_the_learner_waits_in_publish_for_the_publication_before(make_loop) -> None:
    loop = make_loop(20)
    loop.start()
    loop.run(3)
    until(lambda: loop.faults["worker-0"].held[-1] == 3)
    loop.faults["worker-0"].go.clear()
    loop.version = loop.version.next()
    with loop.controller.lock:
        loop.pool.version = loop.version.number  # as after a batch
    loop.publish()  # starts, and does not wait
    begun = time.monotonic()
    threading.Timer(0.3, loop.faults["worker-0"].go.set).start()
    loop.publish()
    assert time.monotonic() - begun > 0.25
    assert 4 in loop.faults["worker-0"].held  # whole, before the next one was written


def test_stopping_ends_every_wait(make_loop) -> None:
    loop = make_loop(20)
    loop.faults["worker-0"].up.clear()
    loop.controller.launch()
    loop.publish()
    begun = time.monotonic()
    loop.controller.wait_ready(lambda: time.monotonic() - begun > 0.2)
    assert loop.controller.take(lambda: time.monotonic() - begun > 0.4) is None
    assert time.monotonic() - begun < 2.0


def test_what_workers_report_reaches_the_learner_once(make_loop) -> None:
    loop = make_loop(10)
    loop.start()
    loop.run()
    windows = [loop.controller.window()]

    def told() -> bool:
        windows.append(loop.controller.window())
        return sum(len(w.published) for w in windows) == 11 and any(w.intervals for w in windows)

    until(told)  # it idles now, and says so
    assert sum(w.busy for w in windows) > 0
    assert {interval.who for w in windows for interval in w.intervals} == {"worker-0"}
    assert all(0 < t.stage < t.commit and 0 < t.pause < t.commit for w in windows for t in w.published)


def test_the_learner_scores_interrupted_rollouts_before_a_batch_forms(make_loop) -> None:
    """Without the lock: the workers' messages are handled meanwhile."""
    loop = make_loop(30, max_lag=3)
    asked: list[Slot] = []

    def rescore(groups: Sequence[Group]) -> list[Group]:
        assert loop.controller.lock.acquire(timeout=5.0)  # the controller's thread can have it, too
        loop.controller.lock.release()
        asked.extend(g.slot for g in groups)
        return [replace(g, rollouts=tuple(replace(r, forgetting=0.25, forgetting_source="learner") for r in g.rollouts)) for g in groups]

    loop.controller._rescore = rescore
    loop.start()
    loop.run()
    spanning = {g.slot for formed in loop.trained for g in formed.batch.groups if any(r.oldest < r.newest for r in g.rollouts)}
    assert spanning <= set(asked)
    assert len(asked) == len(set(asked))
    scored = [r for formed in loop.trained for g in formed.batch.groups if g.slot in asked for r in g.rollouts]
    assert all(r.forgetting == 0.25 for r in scored)
