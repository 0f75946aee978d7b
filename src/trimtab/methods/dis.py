"""DIS: double-sided token importance sampling of GLM-5."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import MethodOptions, Ratio, Status, View, Weighing, WeighMethod


class DISOptions(MethodOptions):
    low: float = Field(0.3, gt=0, le=1, description="width of the band below 1: kept where ratio > 1 - low")
    high: float = Field(5.0, gt=0, description="width of the band above 1: kept where ratio < 1 + high")


class DIS(WeighMethod):
    """w_t = pi/mu where 1 - low < w_t < 1 + high, else 0, detached; with `linear` the loss is -w A log pi.

    The formula is published, its bounds are not: .3 and 5 (the band .7-6) are those of public re-implementations. The paper also
    discards rollouts older than a limit and refills short groups: here `runtime.max_lag` and `rollout.min_group` (without repeating
    members). Several updates per batch: the ratio is to the policy of the update at hand.
    """

    name = "dis"
    source = "GLM-5 (arXiv 2602.15763); bounds .3/5 from re-implementations"
    status = Status.OUR_READING
    summary = "double-sided token importance sampling, strict bounds"
    formula = "w_it = r if 1 - low < r < 1 + high else 0, r = pi/mu"
    cost = "one exp a token"
    fails = "A token that has lost 30 % of its probability stops teaching, also where it was right and should be brought back."
    Options = DISOptions
    options: DISOptions
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})
    level: Literal["token", "sequence"] | None = "token"

    def weigh(self, view: View) -> Weighing:
        low, high = 1.0 - self.options.low, 1.0 + self.options.high
        log_weight_N, keep_N = F.weights.mask(view.log_ratio_N, low, high, strict=True)
        view.metric("dis/masked", float((~keep_N).sum()), keep_N.shape[0])
        return Weighing(view.log_ratio_R.new_zeros(view.score_R.shape[0]), weight_N=log_weight_N.exp(), keep_N=keep_N)
