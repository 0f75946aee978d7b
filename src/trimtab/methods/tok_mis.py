"""Token-level masked importance sampling."""

from __future__ import annotations

from typing import Literal

from trimtab import functional as F
from trimtab.control.protocol import Ratio, View, Weighing, WeighMethod
from trimtab.methods.seq_mis import BandOptions


class TokenMIS(WeighMethod):
    """w_t = pi/mu where low <= w_t <= high, else the token is masked (it still counts in the denominator)."""

    name = "tok_mis"
    source = "VCPO's comparison (arXiv 2602.17616), high = 8 and 2, no lower bound; on both sides it is `icepop`"
    summary = "token-level masked importance sampling"
    formula = "w_it = pi/mu if low <= pi/mu <= high else 0"
    cost = "one exp a token"
    fails = (
        "Tokens the policy has moved most on are masked first, so the gradient shrinks where it is needed, and the "
        "prefix stays uncorrected."
    )
    Options = BandOptions
    options: BandOptions
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})
    level: Literal["token", "sequence"] | None = "token"

    def weigh(self, view: View) -> Weighing:
        log_weight_N, keep_N = F.weights.mask(view.log_ratio_N, self.options.low, self.options.high)
        view.metric(f"{self.name}/masked", float((~keep_N).sum()), keep_N.shape[0])
        return Weighing(view.log_ratio_R.new_zeros(view.score_R.shape[0]), weight_N=log_weight_N.exp(), keep_N=keep_N)
