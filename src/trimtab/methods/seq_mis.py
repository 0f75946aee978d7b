"""Sequence-level masked importance sampling."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from trimtab import functional as F
from trimtab.control.protocol import MethodOptions, Ratio, View, Weighing, WeighMethod


class BandOptions(MethodOptions):
    high: float = Field(8.0, gt=0, description="largest ratio kept: the c of masked importance sampling; 8 or 2 in VCPO, 2 in veRL")
    low: float = Field(0.0, ge=0, description="smallest ratio kept; 0: no lower bound")

    @model_validator(mode="after")
    def _ordered(self) -> BandOptions:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low} must be below high = {self.high}")
        return self


class SequenceMIS(WeighMethod):
    """w = prod_t pi/mu where low <= w <= high, else the whole rollout is masked (it still counts in the denominator)."""

    name = "seq_mis"
    source = "VCPO's comparison (arXiv 2602.17616), high = 8 and 2, no lower bound; veRL rollout correction `seq_sum_k1`, .5 to 2"
    summary = "sequence-level masked importance sampling"
    formula = "w_i = exp(s_i) if low <= exp(s_i) <= high else 0"
    cost = "one sum a rollout"
    fails = (
        "At large lag most rollouts leave the band, and those that stay are the ones the policy has not moved on; what "
        "is masked still counts in the denominator, so the step shrinks."
    )
    Options = BandOptions
    options: BandOptions
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})
    level: Literal["token", "sequence"] | None = "sequence"

    def weigh(self, view: View) -> Weighing:
        log_scale_R, keep_R = F.weights.mask(view.log_ratio_R, self.options.low, self.options.high)
        view.metric("seq_mis/masked", float((~keep_R).sum()), keep_R.shape[0])
        return Weighing(log_scale_R, keep_N=view.token(keep_R))
