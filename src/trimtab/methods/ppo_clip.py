"""PPO's clipped objective, anchored on the behavior policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import MethodOptions, ObjectiveMethod, Ratio, View, Weighing

if TYPE_CHECKING:
    from torch import Tensor


class PPOClipOptions(MethodOptions):
    low: float = Field(0.2, gt=0, lt=1, description="clip range below 1")
    high: float = Field(0.2, gt=0, description="clip range above 1")
    dual: float | None = Field(None, gt=1, description="dual clip: cap on r for A < 0, published with 3 (Ye et al. 2020)")


class PPOClip(ObjectiveMethod):
    """loss_t = w_t max(-r A, -clip(r, 1-low, 1+high) A), r = pi_current/pi_behavior of the token.

    The clip is around the policy that sampled, so staleness and several updates per batch use up the same range; without ``dual``
    nothing bounds a token of A < 0 whose ratio has grown.
    """

    name = "ppo_clip"
    source = "Schulman et al. 2017 (arXiv 1707.06347), Eq. 7; r to the rollout's own log-probs as in TRL's asynchronous GRPO"
    summary = "PPO clip of the token ratio to the behavior policy"
    formula = "L = max(-r A, -clip(r, 1-l, 1+h) A); dual: min(that, -c A) for A < 0"
    cost = "none"
    fails = "Stale tokens lie outside the clip range and lose their gradient: at high lag most of the batch teaches nothing."
    docs = "docs/methods/objectives.md"
    Options = PPOClipOptions
    options: PPOClipOptions
    advantage_only = True
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})

    def anchor_N(self, view: View) -> Tensor:
        """Log-probs of the policy that the ratio is taken to."""
        return view.behavior_N

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        o = self.options
        return clip_loss(self.name, view, w, advantage_N, self.anchor_N(view), low=o.low, high=o.high, dual=o.dual)


def clip_loss(
    name: str, view: View, w: Weighing, advantage_N: Tensor, old_N: Tensor, *, low: float, high: float, dual: float | None = None
) -> Tensor:
    """PPO's loss of the range [1 - low, 1 + high] around ``old_N``; notes the share of tokens whose gradient the clip removes."""
    ratio_N = F.ratios.exp_clamped(view.current.detach() - old_N)
    outside_N = ((ratio_N > 1 + high) & (advantage_N > 0)) | ((ratio_N < 1 - low) & (advantage_N < 0))
    view.metric(f"{name}/clipped", float(outside_N.sum()), outside_N.shape[0])
    return F.objectives.ppo_clip(
        view.current, old_N, advantage_N, eps_low=low, eps_high=high, dual_clip=dual, weight_N=view.weights(w), keep_N=w.keep_N
    )
