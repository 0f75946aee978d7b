"""The control whose baseline is the worst of the group."""

from __future__ import annotations

from trimtab import functional as F
from trimtab.control.protocol import Credit, CreditMethod, Status, View, Weighing
from trimtab.methods.grpo import StdOptions, inverse_std


class GroupMin(CreditMethod):
    """A_i = (R_i - min R of the group) / std of the group: what OPOB drifts to on rewards in {0, 1}, for rewards of any offset.

    Without a negative advantage nothing is unlearned, only crowded out. It tells whether OPOB's gain is its weighting or merely that
    the failures push no more: on rewards in {0, 1} it is ``b0``. Several updates per batch change nothing: rewards are all it reads.
    """

    name = "group_min"
    source = "control; our definition"
    status = Status.CONTROL
    summary = "worst reward of the group as baseline, group std scale"
    formula = "A_i = (R_i - min(R)) / (std(R) + 1e-6)"
    cost = "none"
    fails = "Only successes are imitated: slower than a baseline that also pushes failures down while failures are frequent."
    docs = "docs/vcpo.md"
    Options = StdOptions
    options: StdOptions
    silent = True
    min_group = 2

    def credit(self, view: View, w: Weighing) -> Credit:
        return Credit(F.advantages.group_min(view.reward_R, view.group_R, view.groups) * inverse_std(view, self.options.std))
