"""Truncated responses out of the loss: DAPO's overlong filtering."""

from __future__ import annotations

from typing import Literal

from trimtab import functional as F
from trimtab.control.protocol import View, Weighing, WeighMethod


class MaskTruncated(WeighMethod):
    """A rollout that was cut off at the token limit is masked: its score says that it ran out of room, not that its answer was wrong.

    It keeps its say in the group's baseline, and in every denominator (a mask never changes one; TRL's ``mask_truncated_completions``
    takes its tokens out of ``token_mean``'s, too). It corrects nothing: add a weight, or `none`. Several updates per batch: the same
    rollouts at each.
    """

    name = "mask_truncated"
    source = "DAPO (arXiv 2503.14476), section 3.4: overlong filtering; denominators: ours"
    summary = "responses cut off at the token limit are left out of the loss"
    formula = "keep rollout i if it ended by itself"
    cost = "none"
    fails = "Where most responses are truncated nothing is left that would teach the policy to be brief; `overlong` does."
    masks_only = True
    level: Literal["token", "sequence"] | None = "sequence"

    def weigh(self, view: View) -> Weighing:
        view.metric("mask_truncated/masked", float((~view.terminated_R).sum()), view.terminated_R.shape[0])
        keep_R = view.terminated_R | view.log_ratio_R.isnan()  # a mask hides no broken log-prob
        return Weighing(F.weights.nan_of(view.log_ratio_R), keep_N=view.token(keep_R))
