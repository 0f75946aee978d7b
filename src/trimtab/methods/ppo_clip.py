"""PPO's clipped objective, anchored on the behavior policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from trimtab import functional as F
from trimtab.methods.protocol import Method, MethodOptions, Point, Ratio, View, Weighing

if TYPE_CHECKING:
    from torch import Tensor


class PPOClipOptions(MethodOptions):
    low: float = Field(0.2, gt=0, lt=1, description="clip range below 1")
    high: float = Field(0.2, gt=0, description="clip range above 1")
    dual: float | None = Field(None, gt=1, description="dual clip: cap on r A for A < 0 (Ye et al. 2020)")


class PPOClip(Method):
    """loss_t = w_t max(-r A, -clip(r, 1-low, 1+high) A), r = pi_current/pi_behavior of the token."""

    name = "ppo_clip"
    source = "Schulman et al. 2017 (arXiv 1707.06347), Eq. 7; r to the rollout's own log-probs as in TRL's asynchronous GRPO"
    summary = "PPO clip of the token ratio to the behavior policy"
    formula = "L = max(-r A, -clip(r, 1-l, 1+h) A)"
    cost = "one exp a token"
    fails = (
        "A large lag puts most tokens outside the range at the first update, so that what is left of the gradient is "
        "small and of one kind; with A < 0 and a large ratio the loss is unbounded unless `dual` is set."
    )
    Options = PPOClipOptions
    options: PPOClipOptions
    owns = frozenset({Point.OBJECTIVE})
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        o = self.options
        view.metric("ppo_clip/clipped", *self._clipped(view, advantage_N))
        return F.objectives.ppo_clip(
            view.current,
            view.behavior_N,
            advantage_N,
            eps_low=o.low,
            eps_high=o.high,
            dual_clip=o.dual,
            weight_N=view.weights(w),
            keep_N=w.keep_N,
        )

    def _clipped(self, view: View, advantage_N: Tensor) -> tuple[float, float]:
        """Tokens whose gradient the clip removes, of all."""
        ratio = F.ratios.exp_clamped(view.log_ratio_N)
        outside = ((ratio > 1 + self.options.high) & (advantage_N > 0)) | ((ratio < 1 - self.options.low) & (advantage_N < 0))
        return float(outside.sum()), float(outside.shape[0])
