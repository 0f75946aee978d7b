"""Freshest first."""

from __future__ import annotations

import numpy as np

from trimtab.control.protocol import PoolView, Selection, SelectMethod, Status
from trimtab.control.rejection import TIE, largest


class Freshest(SelectMethod):
    """The batch is the B groups whose tokens are youngest on average, ties to the one that came last.

    Lets nothing go itself: what is passed over grows old until ``max_lag`` expires it; under ``max_lag = none`` it stays, and takes
    a sampler's place for good. Several updates per batch: nothing changes, versions count publications.
    """

    name = "freshest"
    source = "last in, first out, as control"
    status = Status.CONTROL
    summary = "youngest groups first"
    formula = "take the B largest mean versions"
    fails = "Prefers what is quick to generate; old groups expire, and their sampling was for nothing."
    cost = "O(waiting groups) at every batch"
    min_depth = 1

    def select(self, pool: PoolView, want: int) -> Selection | None:
        if len(pool.ids) < want:
            return None
        take = np.flatnonzero(largest(want, pool.mean_version, pool.order, tie=TIE))
        return Selection(tuple(pool.ids[take].tolist()))
