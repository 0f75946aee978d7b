"""Kimi k1.5's objective: mirror descent with the squared log-ratio as its regularizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import MethodOptions, ObjectiveMethod, View, Weighing

if TYPE_CHECKING:
    from torch import Tensor


class KimiOptions(MethodOptions):
    tau: float = Field(0.1, gt=0, description="strength of the pull back to the behavior policy")


class Kimi(ObjectiveMethod):
    """loss_t = w (-A log pi + (tau/2) (log pi/mu)^2), per token, to the behavior policy.

    No importance weight: the square pulls stale tokens back, so consent to uncorrected rollouts is part of the method. veRL's `dro` is
    the same. Several updates per batch: the pull is toward the sampling policy at each.
    """

    name = "kimi"
    source = "Kimi k1.5 (arXiv 2501.12599), section 2.3; token form and tau: ROLL `kimi15`"
    summary = "policy gradient with a squared log-ratio penalty"
    formula = "L = -A log pi + (tau/2) (log pi/mu)^2"
    cost = "none"
    fails = "At high lag the penalty outweighs the advantage and pulls the policy back to what it was."
    docs = "docs/methods/objectives.md"
    Options = KimiOptions
    options: KimiOptions
    reads_ratios = True
    uncorrected = True

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        return F.objectives.kimi(
            view.current, view.behavior_N, advantage_N, tau=self.options.tau, weight_N=view.weights(w), keep_N=w.keep_N
        )
