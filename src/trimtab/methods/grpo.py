"""Group-relative credit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Credit, CreditMethod, MethodOptions, View, Weighing

if TYPE_CHECKING:
    from torch import Tensor


class StdOptions(MethodOptions):
    """One rule for every arm of a comparison: ``group`` = unbiased std + 1e-6, scale 0 where std <= 1e-8."""

    std: Literal["group", "population", "batch", "none"] = Field("group", description="what the advantage is divided by")


def inverse_std(view: View, std: Literal["group", "population", "batch", "none"]) -> Tensor:
    """1/sigma of each rollout's advantage, _R; with ``batch`` over all rollouts of the update, also where the view holds a part of them."""
    return F.advantages.reward_scale(view.reward_R, view.group_R, view.groups, std, view.totals.reward_std)


class GRPO(CreditMethod):
    """A_i = (R_i - mean of the group) / std of the group."""

    name = "grpo"
    source = "Shao et al. 2024 (arXiv 2402.03300), Eq. 3; unbiased std + 1e-6 as in veRL"
    summary = "group mean baseline, group std scale"
    formula = "A_i = (R_i - mean(R)) / (std(R) + 1e-6)"
    cost = "nothing"
    fails = (
        "A group of equal scores gives no gradient, and dividing by the std weighs easy and hard prompts up; the group "
        "mean is not the minimum-variance baseline off-policy."
    )
    Options = StdOptions
    options: StdOptions
    silent = True
    min_group = 2

    def credit(self, view: View, w: Weighing) -> Credit:
        return Credit(F.advantages.dr_grpo(view.reward_R, view.group_R, view.groups) * inverse_std(view, self.options.std))
