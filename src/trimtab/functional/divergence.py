"""Monte-Carlo estimators of KL(mu || pi) from tokens sampled by mu (Schulman 2020, "Approximating KL divergence").

Argument everywhere: d_N = log pi - log mu of the sampled token, so r = exp(d) = pi/mu. With mu the behavior policy and pi the
current one, the mean of each over tokens estimates how far the learner has moved from what sampled its data.
"""

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
