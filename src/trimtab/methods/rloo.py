"""Leave-one-out credit."""

from __future__ import annotations

from trimtab import functional as F
from trimtab.control.protocol import Credit, CreditMethod, View, Weighing


class RLOO(CreditMethod):
    """A_i = R_i - mean of the other members of the group, unbiased."""

    name = "rloo"
    source = "Ahmadian et al. 2024 (arXiv 2402.14740), Eq. 9"
    summary = "mean of the other members as baseline, no scale"
    formula = "A_i = n/(n-1) (R_i - mean(R))"
    cost = "nothing"
    fails = (
        "Without a scale the step follows the spread of the rewards; groups of two are noisy, and off-policy the "
        "baseline is not of minimum variance."
    )
    silent = True
    min_group = 2

    def credit(self, view: View, w: Weighing) -> Credit:
        return Credit(F.advantages.rloo(view.reward_R, view.group_R, view.groups))
