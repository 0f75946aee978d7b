"""REINFORCE credit."""

from __future__ import annotations

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Credit, CreditMethod, MethodOptions, View, Weighing


class ReinforceOptions(MethodOptions):
    baseline: float = Field(0.0, description="constant subtracted from every reward")


class Reinforce(CreditMethod):
    """A_i = R_i - baseline, with a constant baseline: groups of one are enough, and groups of equal scores give gradient too."""

    name = "reinforce"
    source = "Williams 1992"
    summary = "constant baseline, no scale"
    formula = "A_i = R_i - b"
    cost = "nothing"
    fails = "Rewards far from the constant make all coefficients of one sign, and the variance grows with the distance."
    Options = ReinforceOptions
    options: ReinforceOptions

    def credit(self, view: View, w: Weighing) -> Credit:
        return Credit(F.advantages.reinforce(view.reward_R, self.options.baseline))
