"""PACE: Pool-Aware Control of Effective Staleness (Li et al. 2026, arXiv 2609.36830). Admission control; the loss stays as it is.

Published (abstract and a public digest): staleness = generation staleness + waiting staleness, averaged over tokens; a rejection rate
that follows the pool's excess over a target, smoothed by an EMA (Little's law); rejected is what has the largest *effective* staleness,
in which waiting counts in full and generation is weighed by the percentile, to the power gamma = 4, of a prefix-forgetting score, so
that long or interrupted rollouts are not punished just for spanning versions. Our reading: every formula below. With

    v_t     version that sampled token t                e   version that sampled the last one        V   learner's version
    G       e - mean_t v_t, generation staleness        W   V - e, waiting staleness                 G + W = mean_t (V - v_t)
    F       mean of phi(log mu_t - log q_t) over the tokens of versions before e, q = policy e (source swap) or V (source learner)
    pct     (#{F' < F} + #{F' = F} / 2) / n over the interrupted rollouts in the pool, topped up with the latest that have left
    omega   pct^gamma; 1 where F is unknown
    ES      W + omega G, mean (or max) over the members of a group

and, with n groups waiting, B of them to a batch and P* = (1 + w_star) B, at every batch:

    x = max(0, (n - P*) / n)     ema <- beta ema + (1 - beta) x     K = floor(ema n + carry), at most n - B; 0 while n <= P*

the K groups of largest ES are let go (ties, to 1e-9 versions: what has waited longer, then what came first), and the batch is the
first B arrivals of the rest. Where more than B groups arrive per batch, n settles at P* plus the surplus, and exactly the surplus is
rejected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from trimtab.control.pool_side import F64, I64
from trimtab.control.protocol import PoolView, Rescoring, Selection, SelectMethod, State, Status
from trimtab.control.rejection import TIE, RejectionBudget, RejectionOptions, largest, quantile, report, select_rows

RING = 512  # scores of rollouts that have left the pool


class PaceOptions(RejectionOptions):
    gamma: float = Field(4.0, ge=0, description="sharpness of the percentile weight; 0: plain age")
    waiting_only: bool = Field(False, description="omega = 0: generation staleness does not count")
    forgetting: Literal["swap", "learner", "none"] = Field("swap", description="who scores the prefixes of interrupted rollouts")
    phi: Literal["relu", "abs", "k1", "k3"] = Field("relu", description="what is averaged over a prefix, of log mu - log q")
    unit: Literal["mean", "max"] = Field("mean", description="effective staleness of a group from its members'")
    order: Literal["fifo", "smallest"] = Field("fifo", description="the batch: first arrivals, or smallest effective staleness")
    population: int = Field(32, ge=1, le=RING, description="fewest scores a percentile is taken over")


@dataclass(slots=True)
class Pending:
    """What ``select`` last answered, until it forms."""

    view: PoolView
    budget: RejectionBudget
    effective: F64
    omega_M: F64
    score_M: F64  # the population's share that is in the pool; NaN where unknown
    take: I64
    reject: I64


class Pace(SelectMethod):
    """Rejects the pool's excess, what has waited and drifted most first.

    Cost: O(waiting groups) NumPy at every batch; with ``swap`` the output head over the prefixes that a weight swap re-prefills
    anyway; with ``learner`` a forward over interrupted rollouts. Several updates per batch: versions count publications, one a batch.
    """

    name = "pace"
    source = "PACE (arXiv 2609.36830): abstract and a public digest; formulas: our reading"
    status = Status.OUR_READING
    summary = "pool-aware rejection by effective staleness"
    formula = "reject floor(ema n) groups of largest W + pct(F)^gamma G; ema of max(0, 1 - P*/n)"
    fails = "Samplers held back by depth or max_lag leave no excess, and it never acts; prompts that are slow and hard may be let go."
    cost = "columnar sort of the pool; head over re-prefilled prefixes (swap) or a forward over interrupted rollouts (learner)"
    Options = PaceOptions
    options: PaceOptions

    def __init__(self, options: PaceOptions) -> None:
        super().__init__(options)
        self.min_depth = math.floor(options.w_star) + 1
        self.rescoring = None if options.forgetting == "none" else Rescoring(options.forgetting, options.phi)
        self._budget = RejectionBudget()
        self._ring: list[float] = []
        self._pending: tuple[Selection, Pending] | None = None

    def select(self, pool: PoolView, want: int) -> Selection | None:
        n, o = len(pool.ids), self.options
        if n < want:
            return None
        budget = self._budget.next(n, want, o)
        score_M, omega_M = self._omega(pool)
        effective = effective_staleness(pool, omega_M, o.unit)
        gone = largest(budget.groups, effective, pool.now - pool.finished, tie=TIE)
        rest = np.flatnonzero(~gone)
        take = rest[:want] if o.order == "fifo" else rest[largest(want, -effective[rest], tie=TIE)]
        reject = np.flatnonzero(gone)
        selection = select_rows(pool, budget, take, reject, o)
        self._pending = selection, Pending(pool, budget, effective, omega_M, score_M, take, reject)
        return selection

    def _omega(self, pool: PoolView) -> tuple[F64, F64]:
        """Each interrupted member's score and weight."""
        known = ~np.isnan(pool.forgetting_M)
        score_M = pool.forgetting_M.copy()
        omega_M = np.full(len(score_M), 0.0 if self.options.waiting_only else 1.0)
        if not known.any():
            return score_M, omega_M
        finite = np.isfinite(score_M)
        score_M[known & ~finite] = score_M[finite].max(initial=0.0)  # no token could be re-scored: as the most forgotten
        population = score_M[known]
        lacking = max(0, self.options.population - len(population))
        topped = np.concatenate([population, self._ring[len(self._ring) - min(lacking, len(self._ring)) :]])
        if not self.options.waiting_only:
            omega_M[known] = percentile(topped)[: len(population)] ** self.options.gamma
        return score_M, omega_M

    def formed(self, selection: Selection) -> None:
        assert self._pending is not None
        answered, p = self._pending
        assert answered is selection
        self._pending, self._budget = None, p.budget
        leaving = np.zeros(len(p.view.ids), np.bool_)
        leaving[p.take] = leaving[p.reject] = True
        scores = p.score_M[leaving[p.view.row_M]]
        self._ring = [*self._ring, *scores[~np.isnan(scores)].tolist()][-RING:]
        report(self.name, p.view, p.budget, p.take, p.reject, self.options)
        self._report(p)

    def _report(self, p: Pending) -> None:
        recorder, view = p.view.recorder, p.view
        for name, rows in (("taken", p.take), ("rejected", p.reject)):
            if len(rows):
                recorder.metric(f"pace/effective_{name}", float(p.effective[rows].sum()), len(rows))
                recorder.metric(f"pace/effective_p95_{name}", quantile(p.effective[rows], 0.95))
        recorder.metric("pace/interrupted", float(len(view.row_M)), float(view.members.sum()))
        if len(view.row_M):
            known = p.score_M[~np.isnan(p.score_M)]
            recorder.metric("pace/forgetting_known", float(len(known)), len(view.row_M))
            recorder.metric("pace/omega", float(p.omega_M.sum()), len(p.omega_M))
            for q in (0.5, 0.95) if len(known) else ():
                recorder.metric(f"pace/forgetting_p{round(100 * q)}", quantile(known, q))

    def state_dict(self) -> State:
        return {**self._budget.state_dict(), "ring": list(self._ring)}

    def load_state_dict(self, state: State) -> None:
        ring = state["ring"]
        assert isinstance(ring, list)
        self._budget, self._ring = RejectionBudget.restored(state), [float(str(score)) for score in ring]


# ------------------------------------------------------------------------------------------------------------------------ mathematics


def percentile(x: F64) -> F64:
    """Mid-rank of each entry among all, in (0, 1): (entries below + half of those equal) / n."""
    order = np.argsort(x)
    ranked = x[order]
    first = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    count = np.diff(first, append=len(x))
    out = np.empty(len(x))
    out[order] = np.repeat((first + 0.5 * count) / len(x), count)
    return out


def effective_staleness(pool: PoolView, omega_M: F64, unit: Literal["mean", "max"] = "mean") -> F64:
    """ES of each group: mean or max over its members of W + omega G. Members that were not interrupted have G = 0."""
    generation_M = omega_M * pool.generation_M
    if unit == "mean":
        return pool.now - pool.finished + np.bincount(pool.row_M, generation_M, minlength=len(pool.ids)) / pool.members
    out = pool.now - pool.first
    np.maximum.at(out, pool.row_M, pool.now - pool.finished_M + generation_M)
    return out
