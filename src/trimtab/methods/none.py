"""No correction for stale rollouts, by explicit consent."""

from __future__ import annotations

from typing import Literal

from trimtab.control.protocol import Status, View, Weighing, WeighMethod


class Uncorrected(WeighMethod):
    """Weight 1 on every token: gradients of stale rollouts as if they were fresh. The control, and what an empty list would mean."""

    name = "none"
    source = "policy gradient without importance weights (Williams 1992)"
    status = Status.CONTROL
    summary = "no importance correction: weight 1 everywhere"
    formula = "w = 1"
    cost = "nothing"
    fails = "Stale rollouts push as if they were fresh: the gradient is biased, and training collapses once the lag is large."
    uncorrected = True
    level: Literal["token", "sequence"] | None = "sequence"

    def weigh(self, view: View) -> Weighing:
        return Weighing(view.log_ratio_R.new_zeros(view.score_R.shape[0]))
