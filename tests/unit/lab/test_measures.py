"""Every measure against a plain NumPy computation."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.laboratory import run
from trimtab.lab import measures as m
from trimtab.lab import series
from trimtab.records import Outcome
from trimtab.report.summary import Summary
from trimtab.telemetry.held_out import Answer, summarize

A = "accuracy/train"
SUMMARY = Summary(
    accuracy_before=0.2, accuracy_after=0.9, batches=5, applied=4, skipped=1, max_age=3, mean_age=1.5, spanning_rollouts=7, wall_s=2.0,
    cpu_s=1.0, methods=("grpo",), seed=0, status="done",
)  # fmt: skip
columns = st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=40)


def array(values: list[float | None]) -> np.ndarray:
    return np.array([math.nan if x is None else x for x in values])


def windows(y: np.ndarray, n: int) -> np.ndarray:
    """One mean a window, by definition."""
    out = []
    for i in range(len(y) - n + 1):
        known = y[i : i + n][np.isfinite(y[i : i + n])]
        out.append(known.mean() if len(known) else math.nan)
    return np.array(out)


@settings(deadline=None, database=None, derandomize=True, max_examples=60)
@given(columns, st.integers(1, 6), st.integers(0, 10))
def test_reductions(values: list[float | None], window: int, first: int) -> None:
    y = array(values)[first:]
    w = windows(y, window)
    known, k = y[np.isfinite(y)], w[np.isfinite(w)]
    r = run({A: values})

    def same(found: float, wanted: float) -> None:
        assert found == pytest.approx(wanted, nan_ok=True)

    same(m.MeanMeasure(kind="mean", metric=A, first=first).of(r), known.mean() if len(known) else math.nan)
    same(m.Lowest(kind="lowest", metric=A, window=window, first=first).of(r), k.min() if len(k) else math.nan)
    same(m.Highest(kind="highest", metric=A, window=window, first=first).of(r), k.max() if len(k) else math.nan)
    same(m.Quantile(kind="quantile", metric=A, q=0.3, first=first).of(r), np.quantile(known, 0.3) if len(known) else math.nan)
    falls = [k[i] - k[j] for i in range(len(k)) for j in range(i, len(k))]
    same(m.Fall(kind="fall", metric=A, window=window, first=first).of(r), max(falls) if falls else math.nan)
    same(m.Count(kind="count", metric=A, window=window, first=first, below=0.5).of(r), (k < 0.5 - 1e-9).sum() if len(k) else math.nan)
    below = [i for i, x in enumerate(w) if x < 0.5 - 1e-9]
    crossed = m.Crosses(kind="crosses", metric=A, window=window, first=first, below=0.5)
    same(crossed.of(r), first + below[0] + window - 1 if below else math.nan)


def test_the_end_of_a_run() -> None:
    r = run({A: [0.0, 0.1, 0.2, None, 0.4]}, summary=SUMMARY)
    assert m.Last(kind="last", metric=A, batches=3).of(r) == pytest.approx(0.3)
    assert m.MeanMeasure(kind="mean", metric=A, first=-2).of(r) == pytest.approx(0.4)
    assert m.MeanMeasure(kind="mean", metric=A, end=2).of(r) == pytest.approx(0.05)
    assert m.HeldOutMeasure(kind="held_out").of(r) == 0.9
    assert m.HeldOutMeasure(kind="held_out", when="before").of(r) == 0.2
    found = summarize(
        [Answer(prompt=i, score=0.5, outcome=Outcome.CORRECT, length=1, truncated=False) for i in range(4)],
        {"error": 6}, version=1, rows=10, samples=1, threshold=0.5, error="down",
    )  # fmt: skip
    of_failures = [
        Summary.model_validate(SUMMARY.model_dump() | Summary.evaluations(None, found.judged(share), None)) for share in (0.6, 0.5)
    ]
    scores = [m.HeldOutMeasure(kind="held_out", what="score").of(run({A: [1.0]}, summary=s)) for s in of_failures]
    assert scores[0] == 0.5
    assert math.isnan(scores[1]), "six of ten failed and half is too many: no number"
    assert m.OfSummary(kind="summary", what="mean_age").of(r) == 1.5
    assert math.isnan(m.HeldOutMeasure(kind="held_out").of(run({A: [1.0]})))
    assert math.isnan(m.OfSummary(kind="summary", what="wall_s").of(run({A: [1.0]})))


def test_a_fall_from_the_best_so_far() -> None:
    values = [0.2, 0.8, 0.9, 0.6, 0.46, 0.44, 0.9]
    half = m.Crosses(kind="crosses", metric=A, below=0.5, times="best")
    assert half.of(run({A: values})) == 5  # 0.44 < 0.45, half of 0.9
    assert half.model_copy(update={"first": 3}).of(run({A: values})) == pytest.approx(
        math.nan, nan_ok=True
    )  # best since then is 0.9, at the end
    assert half.model_copy(update={"unit": "seconds"}).of(run({A: values})) == 3.0
    late = m.Crosses(kind="crosses", metric=A, below=0.5, times="best", window=2, first=-3)
    assert late.of(run({A: [0.0] * 4 + [1.0, 1.0, 0.0, 0.0, 0.0]})) == pytest.approx(math.nan, nan_ok=True)
    assert late.model_copy(update={"first": 4}).of(run({A: [0.0] * 4 + [1.0, 1.0, 0.0, 0.0, 0.0]})) == 7  # 0.5 is not below half of 1


def test_a_spike_is_a_multiple_of_the_median_before_it() -> None:
    norm = "grad/raw_norm"
    quiet = [1.0, 0.0, 1.0, 1.2, None, 0.8, 1.0]
    spike = m.Crosses(kind="crosses", metric=norm, above=4.0, times="median", reference=4)
    assert spike.of(run({norm: [*quiet, 3.9, 4.1, 9.0]})) == 8  # zero and unknown do not count, 4.1 > 4 * 1.0
    assert math.isnan(spike.of(run({norm: [*quiet, 3.9]})))
    assert math.isnan(spike.of(run({norm: [1.0, 9.0]})))  # one norm is no reference


def test_alarms_and_differences() -> None:
    r = run({A: [0.8, 0.8, 0.8, 0.1]}, events=[("kl", 1), ("ess", 2), ("kl", 3)])
    found = m.measure(
        {
            "lead": m.Difference(kind="difference", of="fell", less="alarm"),
            "alarm": m.Alarm(kind="alarm", event="kl"),
            "fell": m.Crosses(kind="crosses", metric=A, below=0.5),
            "never": m.Alarm(kind="alarm", event="entropy"),
        },
        r,
    )
    assert list(found) == ["lead", "alarm", "fell", "never"]
    assert (found["lead"], found["alarm"], found["fell"]) == (2.0, 1.0, 3.0)
    assert math.isnan(found["never"])


def test_what_a_runner_left() -> None:
    r = run({A: [1.0]})
    left = m.CellRun(r.label, r.metrics, [], [], [], [], None, "", {}, values_left={"rate": 2.5})
    assert m.Value(kind="value", key="rate").of(left) == 2.5
    assert math.isnan(m.Value(kind="value", key="other").of(left))


def test_batches_counted_from_when_they_were_sampled() -> None:
    """At lag 2 the trained policy's own rollouts begin with batch 2."""
    r = run({A: [0.0, 0.0, 0.2, 0.4, 0.6, 0.8]}, lag=2)
    assert series.lag(r) == 2
    assert m.MeanMeasure(kind="mean", metric=A, sampled=True, first=1, end=3).of(r) == pytest.approx(0.5)
    assert m.Crosses(kind="crosses", metric=A, sampled=True, first=1, above=0.5).of(r) == 4
    assert m.Crosses(kind="crosses", metric=A, sampled=True, first=-2, above=0.7).of(r) == 5
    short = run({A: [0.5]}, lag=2)
    assert math.isnan(m.MeanMeasure(kind="mean", metric=A, sampled=True).of(short))
    assert m.MeanMeasure(kind="mean", metric=A, sampled=True).of(run({A: [0.5]})) == 0.5


def test_what_no_run_has_is_told() -> None:
    measures: dict[str, m.Measure] = {
        "seen": m.MeanMeasure(kind="mean", metric="method/gac/cosine"),
        "misspelled": m.Highest(kind="highest", metric="method/gac/cosin"),
        "before": m.HeldOutMeasure(kind="held_out"),
        "fell": m.Crosses(kind="crosses", metric=A, below=0.5),
        "left": m.Value(kind="value", key="rate"),
        "not_left": m.Value(kind="value", key="rte"),
        "lead": m.Difference(kind="difference", of="fell", less="fell"),
    }
    one = run({A: [1.0], "method/gac/cosine": [None]})
    two = dataclasses.replace(run({A: [1.0], "method/gac/cosine": [0.5]}), values_left={"rate": 1.0})
    assert m.absent(measures, [one, two]) == [
        "measures.misspelled: no run so far has method/gac/cosin; did you mean method/gac/cosine?",
        "measures.not_left: no run so far has rte; did you mean rate?",
    ]
    assert m.absent(measures, []) == []
