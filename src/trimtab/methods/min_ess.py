"""Refusing updates of too small an effective sample size."""

from __future__ import annotations

import math

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import MethodOptions, Refuse, Status, StepMethod, StepView


class MinESSOptions(MethodOptions):
    threshold: float = Field(0.5, gt=0, le=1, description="smallest ESS/B that is stepped")


class MinESS(StepMethod):
    """Take no step where ESS/B of the sequence ratios, not truncated, is below the threshold: `ess` as a switch, the control beside it.

    A refused update moves nothing, so the version stays and the next batches are fresher. Several updates per batch: each update by its
    own ratios, which grow within the batch; later ones are refused first.
    """

    name = "min_ess"
    source = "our control beside VCPO's step scaling (arXiv 2602.17616), same ESS; the threshold is ours"
    status = Status.CONTROL
    summary = "no step below a minimum effective sample size"
    formula = "refuse if (sum w)^2 / (B sum w^2) < threshold"
    cost = "one sum over the rollouts"
    fails = "Where ratios are wide for another reason than lag (two engines that disagree), nothing narrows them and no step is ever taken."
    Options = MinESSOptions
    options: MinESSOptions
    reads_ratios = True

    def step(self, s: StepView) -> float | Refuse:
        ess = F.ess.ess(s.log_ratio_R)
        if not (ess.finite and math.isfinite(ess.ratio)):
            return Refuse("non-finite importance ratio")
        if ess.ratio < self.options.threshold:
            return Refuse(f"ESS/B {ess.ratio:.3g} < {self.options.threshold:g}")
        return 1.0
