"""How many waiting groups are let go, and how rows of a pool are ranked: shared by PACE and its control, random rejection."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import Field

from trimtab.control.pool_side import F64, I64
from trimtab.control.protocol import MethodOptions, PoolView, Selection, State

TIE = 1e-9  # versions: staleness is a mean, and rounds differently for members in another order


class RejectionOptions(MethodOptions):
    w_star: float = Field(1.0, ge=0, description="tolerated mean waiting in versions: the pool's target is (1 + w_star) batches")
    beta: float = Field(0.9, ge=0, lt=1, description="memory of the rejection rate")
    requeue: bool = Field(False, description="rejected prompts come again (biases towards prompts that are slow)")


@dataclass(frozen=True, slots=True)
class RejectionBudget:
    """How many groups are let go at a batch: the excess over the target as a smoothed rate; fractions are carried over."""

    ema: float = 0.0
    carry: float = 0.0
    excess: float = 0.0
    groups: int = 0  # K

    def next(self, waiting: int, want: int, options: RejectionOptions) -> RejectionBudget:
        """The budget of a batch of ``want`` out of ``waiting`` groups."""
        target = (1 + options.w_star) * want
        excess = max(0.0, (waiting - target) / waiting) if waiting else 0.0
        ema = options.beta * self.ema + (1 - options.beta) * excess
        if waiting <= target or waiting < want:
            return RejectionBudget(ema, 0.0, excess, 0)
        raw = ema * waiting + self.carry
        whole = math.floor(raw + 1e-9)  # 0.1 * 20 is 2, however it rounds
        return RejectionBudget(ema, max(0.0, raw - whole), excess, min(whole, waiting - want))

    def state_dict(self) -> State:
        return {"ema": self.ema, "carry": self.carry}

    @classmethod
    def restored(cls, state: State) -> RejectionBudget:
        return cls(ema=float(str(state["ema"])), carry=float(str(state["carry"])))


def largest(k: int, *keys: F64 | I64, tie: float = 0.0) -> npt.NDArray[np.bool_]:
    """Which ``k`` rows are largest by the first key, ties by the next one, then the earliest row. Linear time.

    A tie is what differs from the k-th largest by no more than ``tie``, so that rounding decides nothing.
    """
    chosen = np.zeros(len(keys[0]), np.bool_)
    rows = np.arange(len(chosen))
    for key in keys:
        if k <= 0:
            return chosen
        values = key[rows]
        cut = np.partition(values, len(rows) - k)[len(rows) - k]
        above = values > cut + tie
        chosen[rows[above]] = True
        k -= int(np.count_nonzero(above))
        rows = rows[~above & (values >= cut - tie)]
    chosen[rows[:k]] = True
    return chosen


def quantile(x: F64, q: float) -> float:
    """The smallest entry that at least the share ``q`` of all do not exceed."""
    at = max(0, math.ceil(q * len(x)) - 1)
    return float(np.partition(x, at)[at])


def select_rows(pool: PoolView, budget: RejectionBudget, take: I64, gone: I64, options: RejectionOptions) -> Selection:
    """A selection from rows of the view."""
    ids, let_go = tuple(pool.ids[take].tolist()), tuple(pool.ids[gone].tolist())
    target = (1 + options.w_star) * len(take)
    why = f"{len(pool.ids)} groups wait, the target is {target:g}: excess {budget.excess:.3f}, smoothed {budget.ema:.3f}"
    return Selection(ids, requeue=let_go, why=why) if options.requeue else Selection(ids, reject=let_go, why=why)


def report(name: str, pool: PoolView, budget: RejectionBudget, take: I64, gone: I64, options: RejectionOptions) -> None:
    """The controller's numbers; generation, waiting and whole staleness of what is taken and of what is let go."""
    recorder, n, want = pool.recorder, len(pool.ids), len(take)
    target = (1 + options.w_star) * want
    recorder.metric(f"{name}/waiting", n)
    recorder.metric(f"{name}/target", target)
    recorder.metric(f"{name}/excess", budget.excess)
    recorder.metric(f"{name}/rate", budget.ema)
    recorder.metric(f"{name}/rejected", len(gone))
    waiting, total = pool.now - pool.finished, pool.now - pool.mean_version
    for part, column in (("waiting", waiting), ("generation", total - waiting), ("staleness", total)):
        for whose, rows in (("taken", take), ("rejected", gone)):
            if len(rows):
                recorder.metric(f"{name}/{part}_{whose}", float(column[rows].sum()), len(rows))
                recorder.metric(f"{name}/{part}_p95_{whose}", quantile(column[rows], 0.95))
