"""The clock: shares are exclusive and sum to the wall time."""

import time
from itertools import pairwise

import pytest

from trimtab.telemetry.clock import Clock


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_shares_are_exclusive_and_sum_to_wall_time():
    before = time.perf_counter()
    clock = Clock()
    started = time.perf_counter()
    with clock.span("forward"):
        time.sleep(0.02)
        with clock.span("norms"):
            time.sleep(0.03)
        with clock.span("norms"):
            time.sleep(0.01)
    time.sleep(0.01)
    ended = time.perf_counter()
    totals = clock.totals()
    after = time.perf_counter()
    assert ended - started <= sum(totals.values()) <= after - before
    assert sum(totals.values()) == pytest.approx(clock.elapsed, rel=1e-9)
    assert totals["forward"] >= 0.02
    assert totals["norms"] >= 0.04
    assert totals["other"] >= 0.01


def test_laps_divide_the_totals():
    clock = Clock()
    laps = []
    for _ in range(3):
        with clock.span("step"):
            time.sleep(0.002)
        laps.append(clock.lap())
    assert sum(sum(lap.wall.values()) for lap in laps) == pytest.approx(clock.elapsed, rel=1e-6)
    for lap in laps:
        assert sum(lap.wall.values()) == pytest.approx(lap.elapsed, rel=1e-6)
        assert lap.wall["step"] >= 0.002


def test_a_span_that_raises_is_charged_and_closed():
    clock = Clock()

    def publish() -> None:
        with clock.span("publish"):
            time.sleep(0.005)
            raise KeyError

    with pytest.raises(KeyError):
        publish()
    time.sleep(0.005)
    totals = clock.totals()
    assert totals["publish"] >= 0.005
    assert totals["other"] >= 0.005


def test_the_timeline_has_each_exclusive_stretch_once():
    origin = time.perf_counter()
    clock = Clock(keep=True)
    with clock.span("forward"):
        time.sleep(0.004)
        with clock.span("norms"):
            time.sleep(0.004)
        time.sleep(0.004)
    rows = clock.take("learner", origin)
    assert [(row.who, row.what) for row in rows] == [("learner", "forward"), ("learner", "norms"), ("learner", "forward")]
    assert all(0 <= a.start < a.end <= b.start for a, b in pairwise(rows))
    assert rows[0].to_json().keys() == {"who", "what", "start", "end"}
    assert clock.take("learner", origin) == []
    assert Clock().take("learner", origin) == []


def test_a_poll_loop_is_one_row_of_the_timeline():
    clock = Clock(keep=True)
    for _ in range(40):
        with clock.span("idle"):
            time.sleep(0.001)
        with clock.span("receive"):
            pass
    with clock.span("generate"):
        time.sleep(0.001)
    rows = clock.take("worker-0", time.perf_counter(), shortest=0.0009)
    assert sum(row.what == "idle" for row in rows) < 20  # a busy machine may tear the loop, never once a poll
    assert rows[-1].what == "generate"
    assert sum(row.end - row.start for row in rows if row.what == "idle") >= 0.04
