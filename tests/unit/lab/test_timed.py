"""Runs by the clock: the learner's floor, the ends of a run, seconds of training, arms compared with one another, the model beside it."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest

from support import runs
from support.laboratory import run as made
from trimtab.config.load import load
from trimtab.lab import figures as spec
from trimtab.lab import measures as m
from trimtab.lab import timed
from trimtab.lab.drawing import curves, draw
from trimtab.lab.results import CellName, Results
from trimtab.lab.runners import VALUES, Work
from trimtab.lab.series import seconds
from trimtab.records import TrimtabError
from trimtab.report import runfiles
from trimtab.telemetry.metrics import BatchRecord

A = "accuracy/train"
LATENCY = ['engine={kind = "latency", rollout_s = 0.05, rollout_p99_s = 0.5, slots = 64}']


def record(batch: int, at: float, accuracy: float = 0.0, **times: float) -> BatchRecord:
    metrics = {A: accuracy, **{f"time/{name}": s for name, s in times.items()}}
    return BatchRecord(batch=batch, version=batch, incarnation=0, time=at, applied=True, metrics=metrics)


def test_the_learners_floor() -> None:
    """What the learner has computed counts; what it has waited for, or slept last time, does not."""
    told: list[int] = []
    clock = timed.TimedRunClock(timed.TimedOptions(learner_s=0.05), told.append)
    begun = time.perf_counter()
    clock.batch(record(0, 10.0, forward=0.03, wait=3.0, log=0.2), "")
    middle = time.perf_counter()
    clock.batch(record(1, 11.0, forward=0.2), "")
    assert 0.02 <= middle - begun < 0.05
    assert time.perf_counter() - middle < 0.02
    assert told == [1, 2]


def test_a_run_ends_by_the_clock() -> None:
    clock = timed.TimedRunClock(timed.TimedOptions(seconds=5.0), lambda _: None)
    clock.batch(record(0, 102.0, wait=1.0, forward=1.0, start=60.0, eval=9.0), "")  # began at 100
    clock.batch(record(1, 104.9), "")
    with pytest.raises(timed.Over, match="has had its 5 s"):
        clock.batch(record(2, 105.0), "")


def test_a_run_ends_where_it_has_arrived() -> None:
    clock = timed.TimedRunClock(timed.TimedOptions(reach=0.5, window=2), lambda _: None)
    clock.batch(record(0, 1.0, 0.9), "")  # a window is whole or nothing
    clock.batch(record(1, 2.0, 0.0), "")
    clock.batch(record(2, 3.0, 1.0), "")  # at it is not past it: the measure would not see a crossing
    with pytest.raises(timed.Over, match=r"reached 0\.5"):
        clock.batch(record(3, 4.0, 0.1), "")
    assert m.Crosses(kind="crosses", metric=A, above=0.5, window=2).of(made({A: [0.9, 0.0, 1.0, 0.1]})) == 3


def test_seconds_of_training_leave_out_what_came_before() -> None:
    """The first row of ``made`` is at 0.5 s, one every half second after it."""
    values = {A: [0.1, 0.2, 0.9], "time/forward": [0.25, 0.5, 0.5], "time/start": [0.2, 0, 0], "time/other": [0.05, 0, 0]}
    assert seconds(made(values)).tolist() == [0.25, 0.75, 1.25]
    crosses = m.Crosses(kind="crosses", metric=A, above=0.5, unit="seconds")
    assert crosses.of(made(values)) == 1.25
    assert seconds(made({A: [0.1, 0.2]})).tolist() == [0.5, 1.0]  # nothing is known of the first


def test_versus_another_arm() -> None:
    measures: dict[str, m.Measure] = {
        "seconds": m.Value(kind="value", key="s"),
        "ratio": m.Versus(kind="versus", of="seconds", arm="sync"),
    }
    cells = [CellName(arm, {"lag": lag}, arm) for lag in (1, 2) for arm in ("sync", "pace")]
    values = {
        ("sync/lag=1", 0): {"seconds": 8.0}, ("pace/lag=1", 0): {"seconds": 2.0},
        ("sync/lag=2", 0): {"seconds": math.nan}, ("pace/lag=2", 0): {"seconds": 2.0},
        ("pace/lag=1", 1): {"seconds": 3.0},
    }  # fmt: skip
    assert math.isnan(m.measure(measures, made({A: [0.0]}))["ratio"])
    m.compare(measures, cells, values)
    assert values["pace/lag=1", 0]["ratio"] == 0.25
    assert values["sync/lag=1", 0]["ratio"] == 1.0
    assert math.isnan(values["pace/lag=2", 0]["ratio"])
    assert math.isnan(values["pace/lag=1", 1]["ratio"])  # the other arm has not been run with this seed


def test_curves_over_seconds() -> None:
    cells = [CellName("sync", {}, "sync"), CellName("async", {}, "async")]
    two = {"sync": [made({A: [0.1, 0.5, 0.9]})], "async": [made({A: [0.2] * 9}), made({A: [0.4] * 7})]}
    figure = spec.Curves(kind="curves", name="c", title="t", over="seconds", smooth=1, panels=(spec.PanelSpec(metric=A),))
    x, y = curves._over_seconds(figure.panels[0], figure, [(r, 0) for r in two["async"]])
    assert x[-1] == 4.5
    assert y[1][x > 4.2].tolist() == pytest.approx([math.nan] * int((x > 4.2).sum()), nan_ok=True)
    x, y = curves._over_seconds(figure.panels[0], figure, [(r, 0) for r in two["sync"]])
    assert [y[0][abs(x - at).argmin()] for at in (0.8, 1.2, 1.5)] == [0.1, 0.5, 0.9]
    material = draw.Material(Results(cells, []), {}, two, ["sync", "async"], {})
    drawn = draw.draw(figure, material)
    assert drawn is not None
    assert drawn.axes[0].get_xlabel() == "seconds of training"


def test_the_prediction_of_a_synchronous_run() -> None:
    """Every batch waits for the last of 64 log-normal rollouts, then for the learner: 0.05 * E max exp(sigma z) + t."""
    n = 60
    told = made({"time/forward": [0.1] * n, "length/mean": [20.0] * n, A: [0.5] * n})
    sync = load("quickstart", [*LATENCY, "runtime.max_lag=0", "runtime.depth=0"])
    slowest = 0.569  # of 64 with median 50 ms and 99th percentile 500 ms: mean of 20,000 NumPy draws
    found = timed.predict(sync, timed.TimedOptions(), told, 10)
    assert 1 / found.batches_per_s == pytest.approx(slowest + 0.1, rel=0.12)
    assert found.age == 0
    ahead = load("quickstart", [*LATENCY, "runtime.max_lag=12", "runtime.depth=4"])
    found = timed.predict(ahead, timed.TimedOptions(learner_s=0.3), told, 10)
    assert found.batches_per_s == pytest.approx(1 / 0.3, rel=0.02)


def test_lockstep_has_no_time(tmp_path: Path) -> None:
    work = Work(load("quickstart", ['runtime={kind = "lockstep"}']), {}, tmp_path)
    with pytest.raises(TrimtabError, match=r"runtime\.kind = 'lockstep': time is real in the local runtime only"):
        timed.run(work, lambda _: None)


@pytest.mark.slow
def test_a_run_with_its_model(tmp_path: Path) -> None:
    config = runs.config(
        tmp_path,
        ["seq_tis", "grpo", "pace"],
        rollout={"max_new_tokens": 6, "prompts_per_batch": 2, "group_size": 2},
        learner={"batches": 10_000},
        runtime={"kind": "local", "max_lag": "none", "depth": 6, "start_deadline_s": 600.0},
        engine={"kind": "latency", "step_s": 0.002, "slowness": 0.7, "slots": 16},
    )
    folder = tmp_path / "cell"
    folder.mkdir()
    told: list[int] = []
    timed.run(Work(config, {"seconds": 3.0, "learner_s": 0.1}, folder), told.append)
    run = runfiles.load(folder, "")
    assert run.summary is not None
    assert (run.summary.status, run.summary.accuracy_after is not None) == ("done", True)
    assert len(run.metrics) == run.summary.batches == told[-1] <= 30
    assert seconds(run)[-1] >= 2.8  # the last batch's sleep is not in its record
    values = json.loads((folder / VALUES).read_text())
    assert values["batches"] == values["model_batches"]
    assert values["batches_per_s"] < 10.5
    assert values["share"] == values["batches_per_s"] / values["model_batches_per_s"]
