"""The rows every benchmark reports."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import psutil

from trimtab.records import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One case: seconds of CPU and wall time, the ratio the case is about, and its spread (interquartile range over rounds)."""

    case: str
    cpu_s: float
    wall_s: float
    ratio: float
    spread: float = 0.0


def spread(values: Sequence[float]) -> float:
    """Interquartile range; 0 for fewer than 4 values."""
    if len(values) < 4:
        return 0.0
    q = statistics.quantiles(values, n=4)
    return q[2] - q[0]


def report(bench: str, rows: Sequence[BenchRow]) -> Json:
    """The JSON object ``trimtab bench NAME --json`` prints."""
    machine: Json = {
        "processor": platform.processor() or platform.machine(),
        "cores": psutil.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
    }
    cases: list[Json] = [asdict(row) for row in rows]
    return {"bench": bench, "machine": machine, "rows": cases}
