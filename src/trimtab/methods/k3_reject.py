"""Rejecting rollouts by the k3 estimate of their divergence."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import MethodOptions, Ratio, View, Weighing, WeighMethod


class K3Options(MethodOptions):
    limit: float = Field(0.01, gt=0, description="largest mean k3 kept, in nats a token; useful .001 to .1")


class K3Reject(WeighMethod):
    """A rollout is masked where mean_t (r - 1 - log r) > limit, r = pi/mu (it still counts in the denominator).

    k3 is never negative, so unlike the geometric mean it cannot cancel between tokens. A mask and no weight: it composes with
    `tok_tis` or `seq_tis`. Several updates per batch: asked again at each update.
    """

    name = "k3_reject"
    source = "veRL rollout correction `seq_mean_k3`, .01 (.001 to .1)"
    summary = "rejection of rollouts by their mean k3 divergence"
    formula = "keep rollout i if mean_t (e^d - 1 - d) <= .01, d = log pi/mu"
    cost = "one exp a token"
    fails = "One token of ratio 30 in a rollout of 1,000 rejects it, because k3 grows like the ratio; at high lag it rejects everything."
    Options = K3Options
    options: K3Options
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})
    masks_only = True
    level: Literal["token", "sequence"] | None = "sequence"

    def weigh(self, view: View) -> Weighing:
        d_N = view.log_ratio_N.double().clamp(max=F.ratios.EXP_BOUND)  # above, e^d - d of the clamped exponent would fall again
        mean_R = F.ratios.sequence_mean(F.divergence.k3(d_N), view.rollout_N, view.score_R.shape[0])
        keep_R = ~(mean_R > self.options.limit)  # False comparisons keep NaN
        view.metric("k3_reject/masked", float((~keep_R).sum()), keep_R.shape[0])
        return Weighing(F.weights.nan_of(mean_R), keep_N=view.token(keep_R))
