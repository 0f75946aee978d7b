"""Truncated importance sampling with the geometric mean of the token ratios."""

from __future__ import annotations

from typing import Literal

from trimtab import functional as F
from trimtab.control.protocol import Ratio, View, Weighing, WeighMethod
from trimtab.methods.seq_tis import TruncationOptions


class GeometricTIS(WeighMethod):
    """w = min((prod_t pi/mu)^(1/L), c) on every token of the rollout, detached: the sequence ratio without its growth with length.

    Several updates per batch: the ratio is to the policy of the update at hand.
    """

    name = "geo_tis"
    source = "VCPO's comparison (arXiv 2602.17616), c = 8 and 2; the length-normalized ratio is that of GSPO (arXiv 2507.18071)"
    summary = "geometric-mean truncated importance sampling"
    formula = "w_i = min(exp(mean_t log pi/mu), c)"
    cost = "one sum a rollout"
    fails = "It is no importance weight of the rollout: near 1 whatever the lag, so it hardly corrects and the cap hardly ever binds."
    Options = TruncationOptions
    options: TruncationOptions
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})
    level: Literal["token", "sequence"] | None = "sequence"

    def weigh(self, view: View) -> Weighing:
        mean_R = F.ratios.sequence_mean(view.log_ratio_N, view.rollout_N, view.score_R.shape[0])
        log_scale_R = F.weights.truncate(mean_R, self.options.c)
        view.metric("geo_tis/truncated", float((log_scale_R < mean_R).sum()), mean_R.shape[0])
        return Weighing(log_scale_R)
