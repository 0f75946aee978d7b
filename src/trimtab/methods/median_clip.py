"""Clipping the gradient norm at a multiple of its own running median."""

from __future__ import annotations

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Composition, Gradient, GradientMethod, Keep, Rank, Skip, State, Status, StepResult
from trimtab.control.running import RunningMedian, RunningOptions, say_unclipped
from trimtab.records import Decision


class MedianClipOptions(RunningOptions):
    factor: float = Field(1.5, gt=1, description="largest norm as a multiple of the running median")


class MedianClip(GradientMethod):
    """g <- g min(1, factor m / ||g||), m the median of the last 64 non-zero norms of applied updates.

    The norm is the one the clips before it in the list leave, so an absolute clip belongs before it. The window stores what this
    clip leaves: a burst raises its own limit at most ``factor``-fold each half window. A median, because one spike must not move it.

    Late in training most groups are equal, norms fall 50-fold, and the one group that still decides something gives a gradient
    4 to 50 times the usual one although ESS is 1: far below an absolute clip, and repeated by momentum. Several updates per batch:
    every update is a norm of the same window.
    """

    name = "median_clip"
    source = "measured here (docs/steady.md); relatives are AutoClip (arXiv 2007.14469) and ZClip (arXiv 2504.02507)"
    status = Status.OUR_READING
    summary = "adaptive clip at a multiple of the gradient norm's running median"
    formula = "g <- g min(1, 1.5 m / ||g||), m = median of the last 64 clipped norms"
    cost = "64 numbers"
    fails = "When harder data make all gradients grow at once, its limit grows at most 1.5-fold in half a window, which delays learning."
    Options = MedianClipOptions
    options: MedianClipOptions
    rank = Rank.CLIP

    def __init__(self, options: MedianClipOptions) -> None:
        super().__init__(options)
        self._norms = RunningMedian(options)

    def check(self, chain: Composition) -> None:
        say_unclipped(self, chain)

    def gradient(self, g: Gradient) -> Keep | Skip:
        norm, median = g.norm(), self._norms.median()
        if median is not None:
            limit = self.options.factor * median
            factor = F.gradients.clip_factor(norm, limit)
            g.recorder.metric("median_clip/clipped", float(factor < 1.0))
            g.recorder.metric("median_clip/ratio", norm / median)
            if factor < 1.0:
                g.scale(factor)
                why = f"norm {norm:.3g} > {self.options.factor:g} x median {median:.3g}"
                g.recorder.note(Decision(method=self.name, point="gradient", what="clipped", amount=factor, why=why))
                norm = limit
        self._norms.propose(norm)
        return Keep()

    def after(self, result: StepResult) -> None:
        self._norms.settle(result.applied)

    def state_dict(self) -> State:
        return self._norms.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._norms.load_state_dict(state)
