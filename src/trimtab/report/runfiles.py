"""A run as its files tell it. Reading is lenient: whatever is missing or torn is left out and counted, nothing raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trimtab.foreign import parse_json, parse_toml, printable
from trimtab.records import Json, TrimtabError
from trimtab.report.summary import Summary
from trimtab.telemetry.held_out import HeldOut
from trimtab.telemetry.metrics import number, pair
from trimtab.telemetry.names import TIME_SHARES
from trimtab.telemetry.sinks import DECISIONS, EVAL, EVENTS, METRICS, TIMELINE

CONFIG = "config.toml"
F64 = npt.NDArray[np.float64]
Row = dict[str, Json]
LABEL = 120  # characters of a run's name on the page


def _rows(path: Path) -> tuple[list[Row], int]:
    """The JSON objects of a file, and how many lines are none."""
    rows: list[Row] = []
    damaged = 0
    if not path.is_file():
        return rows, damaged
    for line in path.read_bytes().splitlines():
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError:  # torn by a crash
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            damaged += 1
    return rows, damaged


@dataclass(frozen=True)
class Run:
    """One run folder, read."""

    label: str
    metrics: list[Row]  # one a batch, in order of batch
    events: list[Row]
    decisions: list[Row]
    timeline: list[Row]
    evals: list[Row]
    summary: Summary | None
    config: str
    damaged: dict[str, int]  # file name -> lines that could not be read

    @cached_property
    def batches(self) -> F64:
        return np.array([number(row.get("batch")) or 0.0 for row in self.metrics])

    @cached_property
    def applied(self) -> npt.NDArray[np.bool_]:
        return np.array([row.get("applied") is not False for row in self.metrics], dtype=bool)

    @cached_property
    def times(self) -> F64:
        """Seconds since the run started at which each batch was done; NaN where unknown."""
        found = [number(row.get("time")) for row in self.metrics]
        return np.array([np.nan if x is None else x for x in found], dtype=np.float64)

    def column(self, name: str) -> F64:
        """A metric, one entry a batch; NaN where it was not recorded."""
        found = [number(_child(row, "metrics").get(name)) for row in self.metrics]
        return np.array([np.nan if x is None else x for x in found], dtype=np.float64)

    def names(self) -> set[str]:
        """Metrics that were recorded in some batch."""
        return {name for row in self.metrics for name in _child(row, "metrics")}

    def series(self, name: str) -> tuple[F64, F64]:
        """Batches and values of a metric, where it was recorded."""
        y = self.column(name)
        known = np.isfinite(y)
        return self.batches[known], y[known]

    @cached_property
    def unreadable(self) -> dict[str, int]:
        """Metrics that were recorded as no finite number, or one beyond ``LARGEST``, and in how many batches: no figure has them."""
        out: dict[str, int] = {}
        for row in self.metrics:
            for name, value in _child(row, "metrics").items():
                if number(value) is None and not _nothing(value):
                    out[name] = out.get(name, 0) + 1
        return out

    def share(self, name: str) -> tuple[F64, F64]:
        """Batches and the share that one ``time/*`` metric has of all of them together."""
        spent = np.nansum([self.column(other) for other in TIME_SHARES], axis=0)
        known = spent > 0
        return self.batches[known], np.nan_to_num(self.column(name)[known]) / spent[known]

    def total(self, name: str) -> tuple[float, float]:
        """Numerators and denominators of a metric summed over the run."""
        found = [pair(_child(row, "metrics").get(name)) for row in self.metrics]
        pairs = [p for p in found if p is not None]
        return sum(n for n, _ in pairs), sum(d for _, d in pairs)

    def mean(self, name: str) -> float | None:
        n, d = self.total(name)
        return n / d if d else None

    @cached_property
    def evaluations(self) -> list[tuple[float, HeldOut]]:
        """By batch: the evaluations, and what the summary says about both ends."""
        found = {number(row.get("batch")): HeldOut.from_json(row) for row in self.evals}
        points = {batch: one for batch, one in found.items() if batch is not None and one is not None}
        if (s := self.summary) is not None:
            for batch, end in ((0.0, s.evaluation("before")), (float(s.batches), s.evaluation("after"))):
                if end is not None:
                    points[batch] = end
        return sorted(points.items(), key=lambda point: point[0])

    @property
    def believed(self) -> list[tuple[float, HeldOut]]:
        """The evaluations without those of which too many responses failed."""
        return [(batch, found) for batch, found in self.evaluations if not found.doubtful]

    def summed(self, field: str) -> dict[str, float]:
        """A histogram field of the records (``ages``, ``ages_generation``), summed over the run."""
        out: dict[str, float] = {}
        for row in self.metrics:
            for key, value in _child(row, field).items():
                out[key] = out.get(key, 0.0) + (number(value) or 0.0)
        return out

    def by_age(self) -> dict[int, dict[str, float]]:
        """Age -> tokens and token-weighted means of ``kl``, ``ratio_mean`` and ``log_ratio_abs_mean`` over the run."""
        sums: dict[int, dict[str, float]] = {}
        for row in self.metrics:
            for label, cells in _child(row, "by_age").items():
                tokens = number(cells.get("tokens")) if isinstance(cells, dict) else None
                if not isinstance(cells, dict) or not tokens or not is_age(label):
                    continue
                total = sums.setdefault(int(label), {"tokens": 0.0})
                total["tokens"] += tokens
                for name, value in cells.items():
                    mean = number(value)
                    if name != "tokens" and mean is not None:
                        total[name] = total.get(name, 0.0) + mean * tokens
        return {age: {k: v if k == "tokens" else v / t["tokens"] for k, v in t.items()} for age, t in sorted(sums.items())}

    def options(self) -> dict[str, str]:
        """The resolved configuration, flat: ``learner.lr`` -> ``0.0003``."""
        try:
            return dict(_flat(parse_toml(self.config)))
        except ValueError:
            return {}


def load(folder: Path, label: str) -> Run:
    """Read a run folder. Raises TrimtabError only where there is no such folder."""
    if not folder.is_dir():
        raise TrimtabError(f"run folder {folder} does not exist: give the folder that `trimtab train` wrote to")
    files: dict[str, list[Row]] = {}
    damaged = {}
    for name in (METRICS, EVENTS, DECISIONS, TIMELINE, EVAL):
        files[name], lost = _rows(folder / name)
        if lost:
            damaged[name] = lost
    by_batch = {number(row.get("batch")): row for row in files[METRICS]}
    metrics = [by_batch[b] for b in sorted(b for b in by_batch if b is not None)]
    try:
        summary = Summary.read(folder)
    except TrimtabError:  # a run that was killed has none; the page says so
        summary = None
    config = folder / CONFIG
    text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""
    return Run(label, metrics, files[EVENTS], files[DECISIONS], files[TIMELINE], files[EVAL], summary, text, damaged)


def labels(folders: Sequence[Path]) -> list[str]:
    """A short name for each folder: its last parts, as many as tell them apart, printable."""
    paths = [folder.resolve() for folder in folders]
    for depth in range(1, max((len(p.parts) for p in paths), default=1) + 1):
        names = [printable("/".join(p.parts[-depth:]), LABEL) for p in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({i + 1})" for i, name in enumerate(names)]


def is_age(text: str) -> bool:
    """A key of the histograms; no run is a million versions late."""
    return text.isascii() and text.isdigit() and len(text) <= 6


def _nothing(value: Json) -> bool:
    """A rate over nothing: nothing was observed, which is no fault."""
    return isinstance(value, list) and len(value) == 2 and value[1] == 0


def _child(row: Mapping[str, Json], name: str) -> dict[str, Json]:
    child = row.get(name)
    return child if isinstance(child, dict) else {}


def _flat(table: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    out = []
    for key, value in table.items():
        if isinstance(value, dict):
            out.extend(_flat(value, f"{prefix}{key}."))
        else:
            out.append((f"{prefix}{key}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return out
