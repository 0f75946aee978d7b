"""Clipping the gradient norm against a running mean: by its z-score (ZClip) or by its ratio (AdaGC)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Composition, Gradient, GradientMethod, Keep, MethodOptions, Rank, Skip, State, StepResult
from trimtab.control.running import say_unclipped
from trimtab.records import Decision


class ZClipOptions(MethodOptions):
    rule: Literal["zscore", "ratio"] = Field("zscore", description="ratio: limit = ratio x mean, as AdaGC has it per tensor")
    z: float = Field(2.5, gt=0, description="zscore: largest z left alone")
    ratio: float = Field(1.05, gt=1, description="ratio: largest multiple of the mean left alone")
    alpha: float = Field(0.97, gt=0, lt=1, description="weight of the past in the running mean and variance")
    warmup: int = Field(25, ge=2, description="applied updates whose mean and variance start the running ones; nothing is clipped before")


class ZClip(GradientMethod):
    """Limit on the global norm n from its exponential mean mu and variance v, both fed with what the clip leaves:

    ``zscore``: z = (n - mu) / sqrt(v); where z > 2.5, n <- mu + (2.5^2 / z) sqrt(v): the further out, the closer to the mean.
    ``ratio``: n <- min(n, ratio mu). AdaGC does this per tensor with 1.05 and decay 0.98; one global norm is our reading.

    Norms of 0 and skipped updates teach nothing. A mean follows falling norms slower than ``median_clip``'s window forgets them.
    Several updates per batch: every update counts.
    """

    name = "zclip"
    source = "ZClip (arXiv 2504.02507; github.com/bluorion-com/ZClip, mode zscore); ratio: AdaGC (arXiv 2502.11034), globally"
    summary = "adaptive clip by the gradient norm's z-score against its running mean"
    formula = "z = (n - mu)/sd > 2.5: n <- mu + (2.5^2/z) sd"
    cost = "2 numbers"
    fails = "While norms fall fast the variance is that of the fall, and spikes pass; after a jump in difficulty it clips every update."
    Options = ZClipOptions
    options: ZClipOptions
    rank = Rank.CLIP

    def __init__(self, options: ZClipOptions) -> None:
        super().__init__(options)
        self._start: list[float] = []
        self._mean = self._var = 0.0
        self._proposed = 0.0

    def check(self, chain: Composition) -> None:
        say_unclipped(self, chain)

    def gradient(self, g: Gradient) -> Keep | Skip:
        norm = g.norm()
        if len(self._start) >= self.options.warmup and norm > 0.0:
            limit = self._limit(norm)
            factor = F.gradients.clip_factor(norm, limit)
            g.recorder.metric("zclip/clipped", float(factor < 1.0))
            if factor < 1.0:
                g.scale(factor)
                why = f"norm {norm:.3g}, mean {self._mean:.3g}, sd {math.sqrt(self._var):.3g}"
                g.recorder.note(Decision(method=self.name, point="gradient", what="clipped", amount=factor, why=why))
                norm = limit
        self._proposed = norm
        return Keep()

    def _limit(self, norm: float) -> float:
        o = self.options
        if o.rule == "ratio":
            return o.ratio * self._mean
        sd = math.sqrt(self._var)
        excess = norm - self._mean
        return norm if excess <= o.z * sd else self._mean + o.z**2 * self._var / excess

    def after(self, result: StepResult) -> None:
        norm, self._proposed = self._proposed, 0.0
        if not result.applied or norm == 0.0:
            return
        if len(self._start) < self.options.warmup:
            self._start.append(norm)
            self._mean, self._var = statistics.fmean(self._start), statistics.pvariance(self._start)
            return
        a = self.options.alpha
        self._mean = a * self._mean + (1 - a) * norm
        self._var = a * self._var + (1 - a) * (norm - self._mean) ** 2

    def state_dict(self) -> State:
        return {"start": list(self._start), "mean": self._mean, "var": self._var}

    def load_state_dict(self, state: State) -> None:
        start = state["start"]
        assert isinstance(start, Sequence)
        self._start = [float(str(x)) for x in start]
        self._mean, self._var = float(str(state["mean"])), float(str(state["var"]))
