"""Dropping rollouts that hold a token the current policy would hardly ever sample."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import MethodOptions, View, Weighing, WeighMethod


class VetoOptions(MethodOptions):
    threshold: float = Field(1e-4, gt=0, lt=1, description="smallest token ratio a rollout may hold")


class TokenVeto(WeighMethod):
    """A rollout is masked if any token has pi/mu < threshold (it still counts in the denominator).

    It rejects catastrophes and corrects nothing: add a weight, or `none`. Several updates per batch: asked again at each update.
    """

    name = "token_veto"
    source = "slime's importance-sampling helper, veto 1e-4; the same number in VCPO's released recipes"
    summary = "a single token of vanishing ratio drops its rollout"
    formula = "keep rollout i if min_t pi/mu >= 1e-4"
    cost = "one minimum a rollout"
    fails = "Long rollouts are dropped more often than short ones, since one token decides: it biases towards short answers."
    Options = VetoOptions
    options: VetoOptions
    reads_ratios = True
    masks_only = True
    level: Literal["token", "sequence"] | None = "sequence"

    def weigh(self, view: View) -> Weighing:
        least_R = -F.ratios.sequence_max(-view.log_ratio_N, view.rollout_N, view.score_R.shape[0])
        keep_R = F.weights.keep_within(least_R, self.options.threshold, float("inf"))
        view.metric("token_veto/masked", float((~keep_R).sum()), keep_R.shape[0])
        return Weighing(F.weights.nan_of(least_R), keep_N=view.token(keep_R))
