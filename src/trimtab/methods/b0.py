"""The control without a baseline."""

from __future__ import annotations

from trimtab.control.protocol import Composition, Credit, CreditMethod, Status, View, Weighing
from trimtab.methods.grpo import StdOptions, inverse_std


class NoBaseline(CreditMethod):
    """A_i = R_i / std of the group: OPOB's control, since OPOB can drift to b = 0 on rewards in {0, 1}."""

    name = "b0"
    source = "control; our definition"
    status = Status.CONTROL
    summary = "no baseline, group std scale"
    formula = "A_i = R_i / (std(R) + 1e-6)"
    cost = "nothing"
    fails = "Rewards with a large offset push every rollout the same way; it has no variance reduction at all."
    Options = StdOptions
    options: StdOptions
    silent = True
    min_group = 2

    def check(self, chain: Composition) -> None:
        # Without the group's own std, equal scores still push: R_i itself is the advantage.
        self.silent = self.options.std in ("group", "population")

    def credit(self, view: View, w: Weighing) -> Credit:
        return Credit(view.reward_R * inverse_std(view, self.options.std))
