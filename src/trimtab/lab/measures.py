"""The vocabulary of measures: each reduces a finished run to one number, NaN where the run does not have it.

A window is the mean of a metric over consecutive batches, and stands at the last of them: from that batch on it is known.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from trimtab.lab.options import ExperimentOptions, OfMetric
from trimtab.lab.results import CellName
from trimtab.lab.series import lag, seconds, trailing
from trimtab.report.runfiles import F64, Run
from trimtab.telemetry.metrics import number

NAN = float("nan")


@dataclass(frozen=True)
class CellRun(Run):
    """A finished cell's run, with what its runner left in ``values.json``."""

    values_left: Mapping[str, float] = field(default_factory=dict)


class _Named(ExperimentOptions):
    label: str = Field("", description="heading of the table's column and of axes; default: the measure's name")
    digits: int = Field(3, ge=0, le=8, description="decimals shown")


class _Stretch(OfMetric):
    """Of batches ``first`` up to ``end`` (left out), counted from 0; negative ``first`` counts from the end."""

    first: int = 0
    end: int | None = None
    sampled: bool = Field(False, description="count batches from the first of rollouts that the trained policy sampled: batch ``lag``")

    def values(self, run: Run) -> F64:
        return run.column(self.metric)[self._skipped(run) :][self.first : self.end]

    def begin(self, run: Run) -> int:
        """Place in the run's batches of the first one of the stretch."""
        skipped = self._skipped(run)
        return skipped + slice(self.first, self.end).indices(len(run.metrics) - skipped)[0]

    def _skipped(self, run: Run) -> int:
        return min(lag(run), len(run.metrics)) if self.sampled else 0


class _Windows(_Stretch):
    window: int = Field(1, ge=1, description="batches averaged")

    def windows(self, run: Run) -> F64:
        """One entry a batch of the stretch that ends a window: NaN where none of the window's batches has the metric."""
        return trailing(self.values(run), self.window)


def _of(values: F64, reduce: Literal["mean", "min", "max"]) -> float:
    kept = values[np.isfinite(values)]
    return float(getattr(kept, reduce)()) if len(kept) else NAN


class HeldOutMeasure(_Named):
    """Accuracy, or mean score, on the held-out prompts; an evaluation that is not believed has none."""

    kind: Literal["held_out"]
    when: Literal["before", "after"] = "after"
    what: Literal["accuracy", "score"] = "accuracy"

    def of(self, run: Run) -> float:
        found = None if run.summary is None else run.summary.evaluation(self.when)
        if found is None or found.doubtful:
            return NAN
        return (found.accuracy if self.what == "accuracy" else found.score).mean


class Last(_Named, OfMetric):
    """Mean of a metric over the last batches."""

    kind: Literal["last"]
    batches: int = Field(20, ge=1)

    def of(self, run: Run) -> float:
        return _of(run.column(self.metric)[-self.batches :], "mean")


class MeanMeasure(_Named, _Stretch):
    """Mean of a metric over a stretch: divided by its length, the area under the curve."""

    kind: Literal["mean"]

    def of(self, run: Run) -> float:
        return _of(self.values(run), "mean")


class Lowest(_Named, _Windows):
    """The lowest window."""

    kind: Literal["lowest"]

    def of(self, run: Run) -> float:
        return _of(self.windows(run), "min")


class Highest(_Named, _Windows):
    """The highest window."""

    kind: Literal["highest"]

    def of(self, run: Run) -> float:
        return _of(self.windows(run), "max")


class Quantile(_Named, _Stretch):
    """A quantile of a metric's values, single batches."""

    kind: Literal["quantile"]
    q: float = Field(ge=0, le=1)

    def of(self, run: Run) -> float:
        values = self.values(run)
        known = values[np.isfinite(values)]
        return float(np.quantile(known, self.q)) if len(known) else NAN


class Fall(_Named, _Windows):
    """The largest fall of a window below an earlier one."""

    kind: Literal["fall"]

    def of(self, run: Run) -> float:
        w = self.windows(run)
        w = w[np.isfinite(w)]
        return float((np.maximum.accumulate(w) - w).max()) if len(w) else NAN


class _Threshold(_Windows):
    below: float | None = None
    above: float | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.below is None) == (self.above is None):
            raise ValueError("give one of below and above")
        return self

    def beyond(self, values: F64, scale: F64 | float = 1.0) -> npt.NDArray[np.bool_]:
        """NaN is beyond nothing; to the rounding of a mean, a value at the threshold is not beyond it either."""
        limit = (self.below if self.below is not None else self.above or 0.0) * scale
        with np.errstate(invalid="ignore"):
            over = values < limit - 1e-9 if self.below is not None else values > limit + 1e-9
        return np.asarray(over, dtype=bool)


class Count(_Named, _Threshold):
    """How many windows are below or above a value."""

    kind: Literal["count"]

    def of(self, run: Run) -> float:
        w = self.windows(run)
        return float(self.beyond(w).sum()) if np.isfinite(w).any() else NAN


class Crosses(_Named, _Threshold):
    """When a window first is below or above a value, or a multiple of the best window so far or of a running median."""

    kind: Literal["crosses"]
    times: Literal["one", "best", "median"] = Field(
        "one", description="below and above are multiples of: 1, the highest window up to then, the median of the batches before"
    )
    reference: int = Field(40, ge=2, description="batches whose median it is")
    unit: Literal["batches", "seconds"] = "batches"
    digits: int = 0

    def at(self, run: Run) -> int | None:
        """Place in the run's batches."""
        values = self.values(run)
        w = trailing(values, self.window)
        scale: F64 | float = 1.0
        if self.times == "best":
            scale = np.fmax.accumulate(w) if len(w) else 1.0
        elif self.times == "median":
            scale = np.array([self._median(values[:i]) for i in range(len(w))])
        places = np.flatnonzero(self.beyond(w, scale))
        if not len(places):
            return None
        return self.begin(run) + int(places[0]) + self.window - 1

    def _median(self, before: F64) -> float:
        """Of the batches before a window; what is 0 or unknown does not count."""
        known = before[-self.reference :]
        known = known[np.isfinite(known) & (known != 0.0)]
        return float(np.median(known)) if len(known) >= self.reference // 2 else NAN

    def of(self, run: Run) -> float:
        place = self.at(run)
        if place is None:
            return NAN
        return float(seconds(run)[place]) if self.unit == "seconds" else float(run.batches[place])


class Alarm(_Named):
    """The batch of a detector's first event."""

    kind: Literal["alarm"]
    event: str = Field(description="the detector: ess, kl, norm_spike, ...")
    digits: int = 0

    def of(self, run: Run) -> float:
        found = (number(event.get("batch")) for event in run.events if event.get("name") == self.event)
        return next((b for b in found if b is not None), NAN)


class Difference(_Named):
    """One measure less another of the same run: the batch of a fall less that of an alarm is how early the alarm came."""

    kind: Literal["difference"]
    of: str
    less: str
    digits: int = 0


class Versus(_Named):
    """A measure over that of another arm, same seed and axis values: how many times as much, or as long."""

    kind: Literal["versus"]
    of: str
    arm: str = Field(description="the arm it is divided by")
    digits: int = 2


class OfSummary(_Named):
    """A number of the run's summary, as in ``summary.json``."""

    kind: Literal["summary"]
    what: Literal["wall_s", "cpu_s", "batches", "applied", "skipped", "mean_age", "max_age", "spanning_rollouts"]

    def of(self, run: Run) -> float:
        return NAN if run.summary is None else float(getattr(run.summary, self.what))


class Value(_Named):
    """A number that the experiment's runner has left in ``values.json`` of the run folder."""

    kind: Literal["value"]
    key: str

    def of(self, run: Run) -> float:
        return run.values_left.get(self.key, NAN) if isinstance(run, CellRun) else NAN


Measure = Annotated[
    HeldOutMeasure
    | Last
    | MeanMeasure
    | Lowest
    | Highest
    | Quantile
    | Fall
    | Count
    | Crosses
    | Alarm
    | Difference
    | Versus
    | OfSummary
    | Value,
    Field(discriminator="kind"),
]


def measure(measures: Mapping[str, Measure], run: Run) -> dict[str, float]:
    """All measures of a run, by name and in their order; NaN for those that compare it with another (:func:`compare`)."""
    out = {name: NAN if isinstance(m, Versus) else m.of(run) for name, m in measures.items() if not isinstance(m, Difference)}
    for name, m in measures.items():
        if isinstance(m, Difference):
            out[name] = out[m.of] - out[m.less]
    return {name: out[name] for name in measures}


def compare(measures: Mapping[str, Measure], cells: Sequence[CellName], values: Mapping[tuple[str, int], dict[str, float]]) -> None:
    """Fill in the measures that need a second run."""
    of = {name: m for name, m in measures.items() if isinstance(m, Versus)}
    other = {(name, c.name): CellName(m.arm, c.at, "").name for name, m in of.items() for c in cells}
    for (cell, seed), mine in values.items():
        for name, m in of.items():
            theirs = values.get((other[name, cell], seed), {}).get(m.of, NAN)
            mine[name] = mine[m.of] / theirs if theirs else NAN


def absent(measures: Mapping[str, Measure], runs: Iterable[CellRun]) -> list[str]:
    """A sentence for each measure of what no run has: a misspelled metric is no number for ever."""
    all_runs = list(runs)
    metrics = {name for run in all_runs for name in run.names()}
    left = {key for run in all_runs for key in run.values_left}
    out = []
    for name, m in measures.items():
        wanted, there = (m.metric, metrics) if isinstance(m, OfMetric) else (m.key, left) if isinstance(m, Value) else ("", {""})
        if all_runs and wanted not in there:
            near = difflib.get_close_matches(wanted, there, n=1)
            out.append(f"measures.{name}: no run so far has {wanted}{f'; did you mean {near[0]}?' if near else ''}")
    return out
