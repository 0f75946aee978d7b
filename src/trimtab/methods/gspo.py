"""GSPO: the clip at the level of the rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import MethodOptions, ObjectiveMethod, Ratio, Reduction, View, Weighing

if TYPE_CHECKING:
    from torch import Tensor


class GSPOOptions(MethodOptions):
    low: float = Field(3e-4, gt=0, lt=1, description="clip range below 1; AReaL's example: 0.4")
    high: float = Field(4e-4, gt=0, description="clip range above 1; AReaL's example: 0.4")


class GSPO(ObjectiveMethod):
    """loss_it = w max(-s A, -clip(s, 1-low, 1+high) A), s_i = exp(mean_t log pi/mu), a geometric mean over the rollout's tokens.

    The published range suits a ratio to the policy of four mini-batches ago. Here the ratio is to the behavior policy, whose distance
    grows with lag: ``gspo/clipped`` says which share of rollouts has lost its gradient; the wide variant is low = high = 0.4.
    Several updates per batch only add to the same distance. s is exact: a view always holds whole rollouts.
    """

    name = "gspo"
    source = "Zheng et al. 2025 (arXiv 2507.18071), Eq. 5 to 7; range as in TRL's and veRL's recipes"
    summary = "PPO clip of the length-normalized sequence ratio"
    formula = "L = max(-s A, -clip(s, 1-l, 1+h) A), s = exp(mean_t log pi/mu)"
    cost = "none"
    fails = "With the published range nearly every stale rollout is clipped; and one wild token hides in the mean of a long rollout."
    docs = "docs/methods/objectives.md"
    Options = GSPOOptions
    options: GSPOOptions
    advantage_only = True
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})
    reduction = Reduction.SEQ_MEAN_TOKEN_MEAN  # with any other one the token form is not the sequence objective

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        o, rollouts = self.options, view.score_R.shape[0]
        s_N = view.token(F.ratios.exp_clamped(F.ratios.sequence_mean(view.log_ratio_N, view.rollout_N, rollouts)))
        outside_N = ((s_N > 1 + o.high) & (advantage_N > 0)) | ((s_N < 1 - o.low) & (advantage_N < 0))
        view.metric("gspo/clipped", float((view.sum_R(outside_N.double()) > 0).sum()), rollouts)
        return F.objectives.gspo(
            view.current,
            view.behavior_N,
            advantage_N,
            view.rollout_N,
            rollouts,
            eps_low=o.low,
            eps_high=o.high,
            weight_N=view.weights(w),
            keep_N=w.keep_N,
        )
