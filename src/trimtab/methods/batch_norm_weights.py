"""Importance weights normalized to mean 1 over the update."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from trimtab.control.protocol import Composition, Gradient, GradientMethod, Keep, MethodOptions, Rank, Skip, WeighMethod
from trimtab.records import TrimtabError

_LEAST = 1e-8  # veRL's: a smaller mean divides nothing


class BatchNormOptions(MethodOptions):
    level: Literal["token", "sequence"] = Field("token", description="mean over action tokens, or over rollouts of their mean")


class BatchNormWeights(GradientMethod):
    """g <- g / mean(w): the finished gradient over the mean weight that its tokens were given, masked ones counted as 0.

    The gradient is linear in the weights, so dividing it once equals dividing every weight, and no extra forward is needed to know the
    mean first. It runs before any clip (rank align). veRL takes the mean before its rejection; here what the chain masks counts as 0,
    so a mask is compensated too. Several updates per batch: each by its own mean.
    """

    name = "batch_norm_weights"
    source = "veRL rollout correction `batch_normalize`; slime's helper has it on"
    summary = "weights normalized to mean 1 over the update (self-normalized importance sampling)"
    formula = "g <- g / mean(w), mean over tokens or over rollouts"
    cost = "one scaling of the gradient"
    fails = (
        "The fewer rollouts keep weight, the more it amplifies the rest, so a nearly empty update is stepped at full size; KL and "
        "entropy terms are scaled with it."
    )
    Options = BatchNormOptions
    options: BatchNormOptions
    rank = Rank.ALIGN

    def check(self, chain: Composition) -> None:
        if not any(not (m.masks_only or m.uncorrected) for m in chain.acting(WeighMethod)):
            raise TrimtabError.field(
                "methods", [m.name for m in chain.methods], f"{self.name} needs a weight to normalize; add one such as seq_tis"
            )

    def gradient(self, g: Gradient) -> Keep | Skip:
        weight_R, length_R = g.weight_R, g.length_R.double()
        has_R = length_R > 0
        weight_R, length_R = weight_R[has_R], length_R[has_R]
        if not len(weight_R):
            return Keep()
        mean = float((weight_R * length_R).sum() / length_R.sum() if self.options.level == "token" else weight_R.mean())
        if not math.isfinite(mean):
            return Skip("the mean importance weight is not finite")
        g.recorder.metric("batch_norm_weights/mean", mean)
        if mean > _LEAST:
            g.scale(1.0 / mean)
        return Keep()
