"""DPPO: a trust region in probabilities, not in ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import MethodOptions, ObjectiveMethod, Ratio, View, Weighing

if TYPE_CHECKING:
    from torch import Tensor

_PUBLISHED = {"tv": 0.15, "kl": 0.05}


class DPPOOptions(MethodOptions):
    divergence: Literal["tv", "kl"] = Field("tv", description="|p - p_old| of the token, or KL of token against all others")
    low: float | None = Field(None, gt=0, description="threshold for A <= 0; unset: 0.15 (tv), 0.05 (kl)")
    high: float | None = Field(None, gt=0, description="threshold for A > 0; unset: 0.15 (tv), 0.05 (kl)")
    cap: float = Field(20.0, gt=0, description="largest importance weight")


class DPPO(ObjectiveMethod):
    """loss_t = -w sg(min(r, cap)) A log pi, 0 where the token has already moved further than a threshold in the direction of A.

    A ratio of 3 is a large step for a token of probability 0.3 and none for one of 1e-6: the region is measured in probability. r and
    p_old are of the behavior policy. Several updates per batch: the region stays around that policy.
    """

    name = "dppo"
    source = "DPPO (arXiv 2602.04879); thresholds of veRL's example, cap as veRL recommends"
    summary = "policy gradient inside a trust region of total variation or binary KL"
    formula = "L = -sg(min(r, c)) A log pi [not (A > 0, D > high, p > p_old) and not (A <= 0, D > low, p < p_old)]"
    cost = "none"
    fails = "Rare tokens are hardly bounded by the region, only by the cap: many of them together still move the rollout's probability far."
    docs = "docs/methods/objectives.md"
    Options = DPPOOptions
    options: DPPOOptions
    advantage_only = True
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        o = self.options
        within = F.clipping.within_tv if o.divergence == "tv" else F.clipping.within_binary_kl
        default = _PUBLISHED[o.divergence]
        trusted_N = within(view.current, view.behavior_N, advantage_N, o.low or default, o.high or default)
        view.metric("dppo/clipped", float((~trusted_N).sum()), trusted_N.shape[0])
        return F.objectives.dppo(
            view.current, view.behavior_N, advantage_N, trusted_N, cap=o.cap, weight_N=view.weights(w), keep_N=w.keep_N
        )
