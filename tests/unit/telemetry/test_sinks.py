"""Sinks: the JSONL files are whole lines of valid JSON whatever is recorded; TensorBoard shows the same numbers."""

import json
import math
import subprocess
import sys

import pytest

from trimtab.records import Decision, Outcome
from trimtab.store.jsonl import JsonLines
from trimtab.telemetry.clock import Interval
from trimtab.telemetry.events import Event, Severity
from trimtab.telemetry.held_out import Answer, summarize
from trimtab.telemetry.metrics import BatchRecord
from trimtab.telemetry.options import TelemetryOptions
from trimtab.telemetry.reducers import Rate
from trimtab.telemetry.sinks import open_sinks


def record(batch, **metrics):
    return BatchRecord(batch=batch, version=batch, incarnation=0, time=0.1 * batch, applied=True, metrics=metrics)


def lines(path):
    return [json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON")) for line in path.read_text().splitlines()]


def test_everything_of_a_batch_is_in_the_files_when_batch_returns(tmp_path):
    sinks = open_sinks(tmp_path, TelemetryOptions(), JsonLines)
    sinks.decisions(0, [Decision(method="ess", point="step", what="damped", amount=0.3, why="ESS/B 0.5")])
    sinks.timeline(0, [Interval("learner", "wait", 0.0, 0.1), Interval("worker-0", "generate", 0.0, 0.2)])
    sinks.event(Event(name="ess", severity=Severity.WARN, batch=0, message="low", evidence={"mean": 0.2}))
    sinks.batch(record(0, **{"reward/mean": Rate(1, 2)}))
    assert lines(tmp_path / "metrics.jsonl")[0]["metrics"] == {"reward/mean": [1, 2]}
    (event,) = lines(tmp_path / "events.jsonl")
    assert event == {"name": "ess", "severity": "warn", "batch": 0, "message": "low", "evidence": {"mean": 0.2}}
    (decision,) = lines(tmp_path / "decisions.jsonl")
    assert decision == {"batch": 0, "method": "ess", "point": "step", "what": "damped", "amount": 0.3, "why": "ESS/B 0.5"}
    wait, generate = lines(tmp_path / "timeline.jsonl")
    assert wait == {"batch": 0, "who": "learner", "what": "wait", "start": 0.0, "end": 0.1}
    assert generate["who"] == "worker-0"
    sinks.close()


def test_what_is_not_finite_is_null_and_an_event_names_it(tmp_path):
    sinks = open_sinks(tmp_path, TelemetryOptions(), JsonLines)
    sinks.decisions(4, [Decision(method="m", point="step", what="x", amount=math.inf)])
    sinks.batch(record(4, **{"grad/raw_norm": math.nan, "kl/k3": Rate(1, 2), "step/lr": 1e-3}))
    sinks.batch(record(5, **{"grad/raw_norm": 1.0}))
    sinks.close()
    assert [row["metrics"]["grad/raw_norm"] for row in lines(tmp_path / "metrics.jsonl")] == [None, 1.0]
    (event,) = lines(tmp_path / "events.jsonl")
    assert (event["name"], event["batch"], event["evidence"]) == ("null_metric", 4, {"metrics": "grad/raw_norm"})
    assert lines(tmp_path / "decisions.jsonl")[0]["amount"] is None


def test_a_resumed_run_appends(tmp_path):
    for batch in (0, 1):
        sinks = open_sinks(tmp_path, TelemetryOptions(), JsonLines)
        sinks.batch(record(batch))
        sinks.close()
    assert [row["batch"] for row in lines(tmp_path / "metrics.jsonl")] == [0, 1]


def test_tensorboard_shows_the_finite_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sinks = open_sinks(tmp_path, TelemetryOptions(tensorboard=True), JsonLines)
    for batch in range(3):
        sinks.batch(record(batch, **{"reward/mean": Rate(batch, 4), "grad/norm": math.nan if batch == 1 else 2.0}))
    sinks.event(Event(name="kl", severity=Severity.WARN, batch=2, message="far"))
    answers = [Answer(prompt=i // 2, score=0.4 * (i % 2), outcome=Outcome.WRONG, length=7, truncated=False) for i in range(8)]
    found = summarize(answers, {"error": 2, "timeout": 1}, version=1, rows=5, samples=2, threshold=1.0, error="KeyError")
    sinks.evaluated(3, "during", found, 1.5)
    sinks.close()
    [row] = lines(tmp_path / "eval.jsonl")
    assert (row["batch"], row["when"], row["score"], row["accuracy"], row["errors"], row["timeouts"]) == (3, "during", 0.2, 0.0, 2, 1)
    accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    assert [(e.step, e.value) for e in accumulator.Scalars("reward/mean")] == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert [e.step for e in accumulator.Scalars("grad/norm")] == [0, 2]
    assert [(e.step, e.value) for e in accumulator.Scalars("event/kl")] == [(2, 1.0)]
    shown = {"score": 0.2, "accuracy": 0.0, "errors": 2, "timeouts": 1, "pass_at_2": 0.0, "length": 7, "accuracy_low": 0.0}
    for name, value in shown.items():
        assert [(e.step, e.value) for e in accumulator.Scalars(f"eval/{name}")] == [(3, pytest.approx(value))]
    assert "held-out" in accumulator.SummaryMetadata("eval/score").summary_description
    assert "reward" in accumulator.SummaryMetadata("reward/mean").summary_description


def test_telemetry_imports_neither_torch_nor_tensorboard():
    code = (
        "import sys, trimtab.telemetry.sinks, trimtab.telemetry.detectors, trimtab.telemetry.clock, trimtab.telemetry.logging;"
        "print([m for m in ('torch', 'tensorboard', 'matplotlib') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
