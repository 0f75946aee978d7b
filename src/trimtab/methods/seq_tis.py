"""Sequence-level truncated importance sampling."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import MethodOptions, Ratio, View, Weighing, WeighMethod


class TruncationOptions(MethodOptions):
    c: float = Field(8.0, gt=0, description="cap on the ratio; 8 in VCPO's recipes, 2 in veRL")


class SequenceTIS(WeighMethod):
    """w = min(prod_t pi_current/pi_behavior, c) on every token of the rollout, detached; product over tokens, not length-normalized."""

    name = "seq_tis"
    source = "veRL rollout correction `sequence`, c = 2 (2 to 10); VCPO (arXiv 2602.17616) section 3.5, c = 8, compared with 2"
    summary = "sequence-level truncated importance sampling"
    formula = "w_i = min(exp(sum_t log pi/mu), c)"
    cost = "one sum a rollout"
    fails = (
        "The product over many tokens has a heavy tail: at large lag or length a few rollouts carry the batch (watch "
        "ESS/B), and the cap biases those it cuts."
    )
    Options = TruncationOptions
    options: TruncationOptions
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})
    level: Literal["token", "sequence"] | None = "sequence"

    def weigh(self, view: View) -> Weighing:
        log_ratio_R = view.log_ratio_R
        log_scale_R = F.weights.truncate(log_ratio_R, self.options.c)
        view.metric("seq_tis/truncated", float((log_scale_R < log_ratio_R).sum()), log_ratio_R.shape[0])
        return Weighing(log_scale_R)
