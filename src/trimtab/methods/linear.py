"""The policy-gradient objective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab import functional as F
from trimtab.control.protocol import ObjectiveMethod, View, Weighing

if TYPE_CHECKING:
    from torch import Tensor


class Linear(ObjectiveMethod):
    """loss_t = -w_t A_t log pi_current, weight detached: linear in the advantage, as OPOB needs."""

    name = "linear"
    source = "VCPO (arXiv 2602.17616) section 3.5; the policy gradient of REINFORCE"
    summary = "-w A log pi"
    formula = "L = -sum_it scale_it w_it A_i log pi(a_it)"
    cost = "nothing"
    fails = "It bounds nothing: how far one update goes is up to the weights, the gradient clip and the step."
    advantage_only = True
    linear = True

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        return F.objectives.linear(view.current, view.weights(w), advantage_N, w.keep_N)
