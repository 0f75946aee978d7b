"""Series of a run, one entry a batch: when batches were done, means over windows of them, and how late their rollouts were."""

from __future__ import annotations

import tomllib

import numpy as np

from trimtab.report.runfiles import F64, Run
from trimtab.telemetry.names import TIME_SHARES

_BEFORE = ("time/start", "time/eval", "time/checkpoint", "time/other")  # of the first batch: what came before it


def lag(run: Run) -> int:
    """Lockstep's lag of a run; 0 in other runtimes."""
    found = tomllib.loads(run.config).get("runtime", {}).get("lag", 0)
    return int(found)


def seconds(run: Run) -> F64:
    """At which each batch was done, from the moment training began: start-up and the evaluation before it are left out."""
    first = {name: run.column(name)[:1] for name in TIME_SHARES if name not in _BEFORE}
    lap = float(np.nansum(list(first.values())))
    return run.times - (run.times[0] - lap if lap else 0.0)


def trailing(y: F64, window: int) -> F64:
    """Means of the known values in every ``window`` consecutive entries; one entry a window, in order."""
    if len(y) < window:
        return np.zeros(0)
    views = np.lib.stride_tricks.sliding_window_view(y, window)
    known = np.isfinite(views)
    n = known.sum(axis=1)
    return np.divide(np.where(known, views, 0.0).sum(axis=1), n, out=np.full(len(n), np.nan), where=n > 0)


def so_far(y: F64, window: int) -> F64:
    """One entry a batch: the mean of the known among the last ``window``, of fewer at the start."""
    return trailing(np.concatenate([np.full(window - 1, np.nan), y]), window)
