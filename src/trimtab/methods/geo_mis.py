"""Rejecting rollouts by the geometric mean of their token ratios."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Ratio, View, Weighing, WeighMethod
from trimtab.methods.seq_mis import BandOptions


class GeometricBandOptions(BandOptions):
    high: float = Field(1.001, gt=0, description="largest geometric-mean ratio kept; 1.1 at high lag")
    low: float = Field(0.999, ge=0, description="smallest kept; 0.9 at high lag, 0: no lower bound")


class GeometricMIS(WeighMethod):
    """A rollout stays, with weight 1, where low <= (prod_t pi/mu)^(1/L) <= high; else it is masked (it still counts in the denominator).

    A mask and no weight: alone it is veRL's geometric rejection, beside `tok_tis` or `seq_tis` its combination with them. The wide
    band .9-1.1 is ours, for lags at which the published one rejects everything. Several updates per batch: asked again at each update.
    """

    name = "geo_mis"
    source = "veRL rollout correction `seq_mean_k1`, band .999-1.001; .99-1.01 in SkyRL, .9999-1.0001 in slime; .9-1.1 ours"
    summary = "geometric-mean rejection of rollouts"
    formula = "keep rollout i if low <= exp(mean_t log pi/mu) <= high"
    cost = "one sum a rollout"
    fails = (
        "The published band admits a mean drift of .001 nats a token, so at a lag of a few versions every rollout is masked and "
        "no step is taken."
    )
    Options = GeometricBandOptions
    options: GeometricBandOptions
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})
    masks_only = True
    level: Literal["token", "sequence"] | None = "sequence"

    def weigh(self, view: View) -> Weighing:
        mean_R = F.ratios.sequence_mean(view.log_ratio_N, view.rollout_N, view.score_R.shape[0])
        keep_R = F.weights.keep_within(mean_R, self.options.low, self.options.high)
        view.metric("geo_mis/masked", float((~keep_R).sum()), keep_R.shape[0])
        return Weighing(F.weights.nan_of(mean_R), keep_N=view.token(keep_R))
