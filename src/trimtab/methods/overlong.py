"""DAPO's soft overlong punishment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from trimtab.control.protocol import MethodOptions, ShapeMethod, View

if TYPE_CHECKING:
    from torch import Tensor


class OverlongOptions(MethodOptions):
    max_length: int | None = Field(None, gt=0, description="action tokens at which the punishment is full; default: the run's own limit")
    buffer: int | None = Field(
        None, gt=0, description="tokens before max_length over which it grows; default: a fifth of it, as DAPO's 4,096 of 20,480"
    )
    factor: float = Field(1.0, gt=0, description="the full punishment")

    @model_validator(mode="after")
    def _ordered(self) -> OverlongOptions:
        if self.max_length is not None and self.buffer is not None and self.buffer > self.max_length:
            raise ValueError(f"buffer = {self.buffer} must be at most max_length = {self.max_length}")
        return self


class Overlong(ShapeMethod):
    """The last action token gets -factor min(1, max(0, (L - (Lmax - Lbuf)) / Lbuf)): linear over the buffer, flat beyond Lmax.

    Credit reads the shaped reward; filters and `dynamic_sampling` have decided on the score before. Groups of equal score are
    back-propagated again, since their lengths differ. The sum of L is over all turns of a rollout.
    """

    name = "overlong"
    source = "DAPO (arXiv 2503.14476), section 3.4: Lmax 20,480, Lbuf 4,096, factor 1"
    summary = "soft punishment of rollouts near the token limit"
    formula = "R <- R - f min(1, max(0, (L - (Lmax - Lbuf)) / Lbuf))"
    cost = "groups of equal score get a backward"
    fails = "It teaches brevity where long reasoning is needed, and in a group otherwise without signal, length is the only thing learned."
    Options = OverlongOptions
    options: OverlongOptions

    def shape(self, view: View) -> Tensor:
        limit = self.options.max_length or view.totals.max_length
        buffer = self.options.buffer or max(1, limit // 5)
        share_R = ((view.length_R.double() - (limit - buffer)) / buffer).clamp(0.0, 1.0)
        has_R = view.length_R > 0
        view.metric("overlong/punished", float((share_R[has_R] > 0).sum()), float(has_R.sum()))
        last_R = view.length_R.cumsum(0) - 1
        added_N = share_R.new_zeros(view.rollout_N.shape[0])
        return added_N.index_add(0, last_R[has_R], -self.options.factor * share_R[has_R])
