"""SAPO: a smooth gate in place of the clip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import MethodOptions, ObjectiveMethod, Ratio, View, Weighing

if TYPE_CHECKING:
    from torch import Tensor


class SAPOOptions(MethodOptions):
    tau_positive: float = Field(1.0, gt=0, description="sharpness of the gate for A > 0")
    tau_negative: float = Field(1.05, gt=0, description="sharpness of the gate for A <= 0")


class SAPO(ObjectiveMethod):
    """loss_t = -w (4/tau) sigmoid(tau (r - 1)) A, r = pi_current/pi_behavior of the token, tau by the sign of A.

    The gradient is the policy gradient times r 4 g (1 - g), g the sigmoid: no token is cut off, far ones fade out on both sides.
    Several updates per batch: the gate is to the behavior policy at each.
    """

    name = "sapo"
    source = "SAPO (arXiv 2511.20347)"
    summary = "soft gate of the token ratio to the behavior policy"
    formula = "L = -(4/tau) sigmoid(tau (r-1)) A"
    cost = "none"
    fails = "The gate sees one token's ratio: at high lag it fades most tokens out, and the rollout as a whole stays uncorrected."
    docs = "docs/methods/objectives.md"
    Options = SAPOOptions
    options: SAPOOptions
    advantage_only = True
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        return F.objectives.sapo(
            view.current,
            view.behavior_N,
            advantage_N,
            tau_positive=self.options.tau_positive,
            tau_negative=self.options.tau_negative,
            weight_N=view.weights(w),
            keep_N=w.keep_N,
        )
