"""Monte-Carlo estimators of KL(mu || pi) from tokens sampled by mu (Schulman 2020, "Approximating KL divergence").

Argument everywhere: d_N = log pi - log mu of the sampled token, so r = exp(d) = pi/mu. With mu the behavior policy and pi the
current one, the mean of each over tokens estimates how far the learner has moved from what sampled its data.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from trimtab.functional.ratios import EXP_BOUND


def k1(d_N: Tensor) -> Tensor:
    """-d: unbiased, either sign. Shape of d."""
    return -d_N


def k2(d_N: Tensor) -> Tensor:
    """d^2 / 2: biased, never negative. Shape of d."""
    return 0.5 * d_N.square()


def k3(d_N: Tensor) -> Tensor:
    """exp(d) - 1 - d: unbiased and never negative. Shape of d; the exponent is clamped at ``EXP_BOUND``."""
    return torch.expm1(d_N.clamp(-EXP_BOUND, EXP_BOUND)) - d_N


Estimator = Literal["k1", "k2", "k3"]


def estimate(estimator: Estimator, d_N: Tensor) -> Tensor:
    """The estimator of that name. Shape of d."""
    return {"k1": k1, "k2": k2, "k3": k3}[estimator](d_N)


def adapted(beta: float, kl: float, *, target: float, samples: int, horizon: int) -> float:
    """beta (1 + clip(kl/target - 1, -0.2, 0.2) samples/horizon): the proportional controller of Ziegler et al. 2019
    (arXiv 1909.08593). A KL that is not finite leaves beta as it is."""
    if not math.isfinite(kl):
        return beta
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return beta * max(0.0, 1.0 + error * samples / horizon)
