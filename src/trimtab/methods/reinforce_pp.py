"""REINFORCE++: advantages normalized over the batch instead of the group."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Credit, CreditMethod, MethodOptions, View, Weighing


class ReinforcePPOptions(MethodOptions):
    baseline: Literal["none", "group"] = Field("none", description="group: subtract the group's mean first, as in REINFORCE++-baseline")


class ReinforcePP(CreditMethod):
    """A_t = (G_t - mean) / sqrt(var + 1e-8) over all action tokens of the batch, G_t the reward from token t on; unbiased variance.

    Published with a KL penalty in the reward, G_t = R - beta sum_{i >= t} KL_i: write ``kl_reward`` beside it for that; without, every
    token of a rollout has G_t = R. ``ppo_clip`` is the published objective. Groups of one are enough, and a group of equal scores gives
    gradient. Several updates per batch: credit is assigned once a batch, before its first update, over all of it, which then costs a
    scoring forward.
    """

    name = "reinforce_pp"
    source = "Hu 2025 (arXiv 2501.03262), Eq. 8 to 10; whitening as in veRL"
    summary = "reward to go, whitened over the batch's tokens"
    formula = "A_t = (G_t - mean(G)) / sqrt(var(G) + 1e-8), G_t = sum_{i >= t} r_i"
    cost = "none with one update a batch, else a scoring forward a batch"
    fails = "A prompt that is always solved is pushed as hard as one that taught something: the batch's mean is no baseline of a prompt."
    docs = "docs/vcpo.md"
    Options = ReinforcePPOptions
    options: ReinforcePPOptions
    cadence: Literal["batch", "update"] = "batch"

    def __init__(self, options: ReinforcePPOptions) -> None:
        super().__init__(options)
        self.min_group = 2 if options.baseline == "group" else 1

    def credit(self, view: View, w: Weighing) -> Credit:
        return_N = F.advantages.reward_to_go(view.token_reward_N, view.length_R)
        if self.options.baseline == "group":
            return_N = return_N - view.token(F.advantages.group_mean(view.reward_R, view.group_R, view.groups)[view.group_R])
        return Credit(advantage_N=F.advantages.reinforce_pp(return_N))
