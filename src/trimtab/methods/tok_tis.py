"""Token-level truncated importance sampling."""

from __future__ import annotations

from typing import Literal

from trimtab import functional as F
from trimtab.control.protocol import Ratio, View, Weighing, WeighMethod
from trimtab.methods.seq_tis import TruncationOptions


class TokenTIS(WeighMethod):
    """w_t = min(pi_current/pi_behavior of token t, c), detached. Biased: the past of the token is not corrected."""

    name = "tok_tis"
    source = "veRL rollout correction `token`, c = 2 (1.5 to 5); 8 and 2 in VCPO's comparison (arXiv 2602.17616)"
    summary = "token-level truncated importance sampling"
    formula = "w_it = min(pi/mu, c)"
    cost = "one exp a token"
    fails = "Biased at any cap, because the prefix that led to the token is not corrected; the bias grows with lag and length."
    Options = TruncationOptions
    options: TruncationOptions
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})
    level: Literal["token", "sequence"] | None = "token"

    def weigh(self, view: View) -> Weighing:
        log_ratio_N = view.log_ratio_N
        log_weight_N = F.weights.truncate(log_ratio_N, self.options.c)
        view.metric("tok_tis/truncated", float((log_weight_N < log_ratio_N).sum()), log_ratio_N.shape[0])
        return Weighing(view.log_ratio_R.new_zeros(view.score_R.shape[0]), weight_N=log_weight_N.exp())
