"""REINFORCE credit."""

from __future__ import annotations

from trimtab import functional as F
from trimtab.methods.protocol import Credit, Method, MethodOptions, Point, View, Weighing


class ReinforceOptions(MethodOptions):
    baseline: float = 0.0


class Reinforce(Method):
    """A_i = R_i - baseline, with a constant baseline: groups of one are enough, and groups of equal scores give gradient too."""

    name = "reinforce"
    source = "Williams 1992"
    summary = "constant baseline, no scale"
    formula = "A_i = R_i - b"
    Options = ReinforceOptions
    options: ReinforceOptions
    owns = frozenset({Point.CREDIT})

    def credit(self, view: View, w: Weighing) -> Credit:
        return Credit(F.advantages.reinforce(view.reward_R, self.options.baseline))
