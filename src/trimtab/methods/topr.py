"""TOPR: no ratio for what was good, a ratio of at most one for what was bad."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import MethodOptions, ObjectiveMethod, Ratio, View, Weighing

if TYPE_CHECKING:
    from torch import Tensor


class TOPROptions(MethodOptions):
    ratio: Literal["sequence", "token"] = Field("sequence", description="of the rollout (the paper) or of the token (ROLL)")


class TOPR(ObjectiveMethod):
    """loss_t = -w A log pi for A > 0, -w sg(min(ratio, 1)) A log pi else; ratio = pi_current/pi_behavior.

    Good rollouts are imitated however old they are; bad ones stop pushing once the policy has left them, so the loss stays bounded
    however off-policy it gets. The paper splits by the sign of the reward it maximizes, which is the advantage here (for rewards 0
    and 1 under a group baseline that is ROLL's split by reward). Several updates per batch: the ratio is taken anew at each.
    """

    name = "topr"
    source = "Le Roux et al. 2025 (arXiv 2503.14286); token ratio: ROLL `topr`"
    summary = "tapered off-policy REINFORCE"
    formula = "L = -A log pi (A > 0); -sg(min(ratio, 1)) A log pi (A <= 0)"
    cost = "none"
    fails = "The gradient of good rollouts is uncorrected: very old ones keep pulling toward what an earlier policy happened to find."
    docs = "docs/methods/objectives.md"
    Options = TOPROptions
    options: TOPROptions
    advantage_only = True
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        return F.objectives.topr(
            view.current,
            view.behavior_N,
            advantage_N,
            view.rollout_N,
            view.score_R.shape[0],
            sequence=self.options.ratio == "sequence",
            weight_N=view.weights(w),
            keep_N=w.keep_N,
        )
