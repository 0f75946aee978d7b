"""Random rejection with PACE's budget."""

from __future__ import annotations

import math

import numpy as np
from pydantic import Field

from trimtab import keyed
from trimtab.control.protocol import PoolView, Selection, SelectMethod, State, Status
from trimtab.control.rejection import RejectionBudget, RejectionOptions, largest, report, select_rows


class RandomRejectOptions(RejectionOptions):
    seed: int = Field(0, ge=0, description="of the draws: keyed by batch and group, so that a poll or a restart draws the same")


class RandomReject(SelectMethod):
    """Lets as many groups go as PACE would, any of them: what is left of PACE's gain is due to its ranking.

    The batch is the first B arrivals of the rest. Several updates per batch: nothing changes, versions count publications.
    """

    name = "random_reject"
    source = "control of PACE (arXiv 2609.36830): the same budget, no ranking"
    status = Status.CONTROL
    summary = "PACE's rejection budget, spent at random"
    formula = "let floor(ema n) random groups go"
    fails = "Like PACE it never acts where depth or max_lag hold the samplers back."
    cost = "O(waiting groups) at every batch"
    Options = RandomRejectOptions
    options: RandomRejectOptions

    def __init__(self, options: RandomRejectOptions) -> None:
        super().__init__(options)
        self.min_depth = math.floor(options.w_star) + 1
        self._budget, self._batches = RejectionBudget(), 0
        self._pending: tuple[PoolView, RejectionBudget] | None = None

    def select(self, pool: PoolView, want: int) -> Selection | None:
        n = len(pool.ids)
        if n < want:
            return None
        budget = self._budget.next(n, want, self.options)
        draw = keyed.fold(keyed.SELECT, self.options.seed, self._batches, pool.ids).astype(np.float64)
        gone = largest(budget.groups, draw)
        self._pending = pool, budget
        return select_rows(pool, budget, np.flatnonzero(~gone)[:want], np.flatnonzero(gone), self.options)

    def formed(self, selection: Selection) -> None:
        assert self._pending is not None
        view, budget = self._pending
        self._pending, self._budget = None, budget
        self._batches += 1
        take, gone = (np.flatnonzero(np.isin(view.ids, ids)) for ids in (selection.take, selection.reject + selection.requeue))
        report(self.name, view, budget, take, gone, self.options)

    def state_dict(self) -> State:
        return {**self._budget.state_dict(), "batches": self._batches}

    def load_state_dict(self, state: State) -> None:
        self._budget, self._batches = RejectionBudget.restored(state), int(str(state["batches"]))
