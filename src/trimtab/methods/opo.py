"""OPO: the optimal baseline under the assumption that every token's gradient is as large as any other's."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Credit, CreditMethod, View, Weighing
from trimtab.methods.grpo import StdOptions, inverse_std


class OPOOptions(StdOptions):
    std: Literal["group", "population", "batch", "none"] = Field("none", description="published: no scale")


class OPO(CreditMethod):
    """A_i = R_i - b with the length-weighted mean reward b of the group: OPOB with |u|^2 replaced by the length, and weights of 1.

    Derived for exactly on-policy rollouts; unlike ``opob`` with ``norms = length`` it does not see importance weights. Several updates
    per batch change nothing: rewards and lengths are all it reads.
    """

    name = "opo"
    source = "Hao et al. 2025 (arXiv 2505.23585); as in veRL, opo_outcome_advantage"
    summary = "length-weighted group mean baseline, no scale"
    formula = "b = sum L R / sum L, A_i = R_i - b"
    cost = "none"
    fails = "Norms do not follow length: late in training a failure's is 10^3 times a success's of the same length, and b is far from b*."
    docs = "docs/vcpo.md"
    Options = OPOOptions
    options: OPOOptions
    silent = True
    min_group = 2

    def credit(self, view: View, w: Weighing) -> Credit:
        best = F.baselines.optimal_baseline(view.reward_R, view.length_R.double().log(), view.group_R, view.groups)
        return Credit((view.reward_R - best.baseline_G[view.group_R]) * inverse_std(view, self.options.std))
