"""Dr.GRPO: GRPO without the two biases of its normalizers."""

from __future__ import annotations

from trimtab import functional as F
from trimtab.control.protocol import Credit, CreditMethod, Reduction, View, Weighing


class DrGRPO(CreditMethod):
    """A_i = R_i - mean of the group, and a constant instead of the rollout's length under the loss.

    The std divides hard and easy groups up, the length mean lets long wrong rollouts off: both go. Several updates per batch change
    nothing here: rewards are all it reads.
    """

    name = "dr_grpo"
    source = "Liu et al. 2025 (arXiv 2503.20783), section 3.2"
    summary = "group mean baseline, no scale, constant length"
    formula = "A_i = R_i - mean(R); L = sum_i (1/R) (1/L_max) sum_t"
    cost = "none"
    fails = "With a length limit far above the usual length the constant shrinks the gradient; the learning rate must make up for it."
    docs = "docs/methods/objectives.md"
    silent = True
    min_group = 2
    reduction = Reduction.SEQ_MEAN_TOKEN_SUM_NORM

    def credit(self, view: View, w: Weighing) -> Credit:
        return Credit(F.advantages.dr_grpo(view.reward_R, view.group_R, view.groups))
