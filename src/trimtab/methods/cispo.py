"""CISPO: clip the importance weight, keep every token's gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from trimtab import functional as F
from trimtab.control.protocol import MethodOptions, ObjectiveMethod, Ratio, View, Weighing

if TYPE_CHECKING:
    from torch import Tensor


class CISPOOptions(MethodOptions):
    low: float = Field(0.0, ge=0, description="smallest weight")
    high: float = Field(5.0, gt=0, description="largest weight")

    @model_validator(mode="after")
    def _ordered(self) -> CISPOOptions:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low} must be below high = {self.high}")
        return self


class CISPO(ObjectiveMethod):
    """loss_t = -w sg(clip(r, low, high)) A log pi, r = pi_current/pi_behavior of the token, bounds of the ratio itself.

    The paper leaves the lower bound open and tunes the upper one. Its bounds elsewhere, as [low, high] here: SkyRL (ScaleRL) and
    TRL's recommendation [0, 5]; veRL [0.8, 1.2], its PPO range; ROLL [0.9, 1.1]. Linear in A, but with a token weight of its own, so
    OPOB cannot re-weight it. Several updates per batch: r is taken anew at each.
    """

    name = "cispo"
    source = "MiniMax-M1 (arXiv 2506.13585), section 3.1; bounds: ScaleRL (arXiv 2510.13786) as in SkyRL"
    summary = "policy gradient with the token ratio clipped as a weight"
    formula = "L = -sg(clip(r, low, high)) A log pi"
    cost = "none"
    fails = "A token ratio is a biased weight for a whole rollout, the more so the longer it is and the higher the lag."
    docs = "docs/methods/objectives.md"
    Options = CISPOOptions
    options: CISPOOptions
    advantage_only = True
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        o = self.options
        ratio_N = F.ratios.exp_clamped(view.log_ratio_N)
        view.metric("cispo/clipped", float(((ratio_N > o.high) | (ratio_N < o.low)).sum()), ratio_N.shape[0])
        return F.objectives.cispo(
            view.current, view.behavior_N, advantage_N, low=o.low, high=o.high, weight_N=view.weights(w), keep_N=w.keep_N
        )
