"""OPMD: online policy mirror descent, which needs no ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Credit, CreditMethod, MethodOptions, ObjectiveMethod, View, Weighing

if TYPE_CHECKING:
    from torch import Tensor


class OPMDOptions(MethodOptions):
    baseline: Literal["mean", "logavgexp"] = Field("mean", description="mean reward of the group, or tau log mean exp(R / tau)")
    tau: float = Field(1.0, gt=0, description="temperature of the mirror step")


class OPMD(CreditMethod, ObjectiveMethod):
    """A_i = R_i - b with b the group's mean or tau log mean exp(R/tau); loss_t = -w A log pi / (1 + tau). Owns credit and objective.

    The gradient of a squared consistency error of the regularized optimum, which holds for rollouts of any policy: so there is no
    ratio and no clip, and consent to uncorrected rollouts is part of the method. Linear in A. Trinity-RFT reduces by
    ``token_mean``. Several updates per batch: each is the same gradient at other weights.
    """

    name = "opmd"
    source = "Trinity-RFT, opmd_policy_loss and opmd_advantage"
    summary = "policy gradient without ratios, damped by a temperature"
    formula = "L = -(R - b) log pi / (1 + tau); b = mean(R) or tau (logsumexp(R/tau) - log n)"
    cost = "none"
    fails = "Nothing bounds a stale rollout: bad ones push their tokens' probabilities toward zero without end."
    docs = "docs/methods/objectives.md"
    Options = OPMDOptions
    options: OPMDOptions
    uncorrected = True
    linear = True
    silent = True
    min_group = 2

    def credit(self, view: View, w: Weighing) -> Credit:
        if self.options.baseline == "mean":
            return Credit(F.advantages.dr_grpo(view.reward_R, view.group_R, view.groups))
        baseline_G = F.advantages.log_mean_exp_baseline(view.reward_R, view.group_R, view.groups, self.options.tau)
        return Credit(view.reward_R - baseline_G[view.group_R])

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        return F.objectives.linear(view.current, view.weights(w) / (1.0 + self.options.tau), advantage_N, w.keep_N)
