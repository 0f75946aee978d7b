"""Importance weights from log-ratios: truncate (TIS) or mask (MIS), at any level, in log space.

The same functions serve token log-ratios ``_N``, their sequence sums ``_R`` and geometric means ``_R``; a weight becomes a
number only after it is bounded. NaN is never dropped: it reaches the loss, and the step is refused.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from trimtab.functional.ratios import masked


class Masked(NamedTuple):
    """A log-weight, 0 where dropped, and whether it is kept. Shape of the log-ratio."""

    log_weight: Tensor
    keep: Tensor


def truncate(log_ratio: Tensor, cap: float) -> Tensor:
    """log min(w, cap) = min(log w, log cap): truncated importance sampling, one-sided. ``cap`` > 0.

    Sequence level: Espeholt et al. 2018 (arXiv 1802.01561) truncate the ratio to bound the variance; VCPO's default is
    cap = 8 on the product over tokens.
    """
    return log_ratio.clamp(max=math.log(cap))


def keep_within(log_ratio: Tensor, low: float, high: float, *, strict: bool = False) -> Tensor:
    """True where low <= w <= high (``strict``: low < w < high), and where w is NaN. ``low`` may be 0, ``high`` infinite."""
    # Both comparisons are False for NaN: a broken ratio must not leave the loss as if a rule had rejected it.
    floor, roof = math.log(low) if low > 0 else -math.inf, math.log(high)
    if strict:
        return ~((log_ratio <= floor) | (log_ratio >= roof))
    return ~((log_ratio < floor) | (log_ratio > roof))


def mask(log_ratio: Tensor, low: float, high: float, *, strict: bool = False) -> Masked:
    """w where low <= w <= high (``strict``: low < w < high), else 0: masked importance sampling (per token: IcePop; per sequence: MIS).

    A dropped entry has log-weight 0 and ``keep`` False, so that exp of it is finite; a mask never changes a denominator.
    """
    keep = keep_within(log_ratio, low, high, strict=strict)
    return Masked(masked(log_ratio, keep), keep)


def nan_of(statistic: Tensor) -> Tensor:
    """0, and NaN where ``statistic`` is: the log-weight of a rule that only masks, so that a NaN which it looked at reaches the loss."""
    return torch.where(statistic.isnan(), statistic, torch.zeros_like(statistic))


def second_moment_limit(d2_N: Tensor, budget: float) -> float:
    """The largest d^2 that stays when the largest are dropped until the mean of the rest is below ``budget`` (M2PO, arXiv 2510.01161).

    Tokens of equal d^2 stay or go together, so the order of tokens does not matter; where none is below the budget, the smallest
    stay. NaN is left out of the mean: no rule may drop it. Infinite where there is no token.
    """
    d2_N = d2_N.double()
    values = d2_N[~d2_N.isnan()].sort().values
    mean = values.cumsum(0) / torch.arange(1, values.numel() + 1, dtype=torch.float64, device=values.device)
    within = int((mean < budget).sum())  # the mean of the smallest n rises with n
    if within == values.numel():
        return math.inf
    below = values[values < values[within]]
    return float(below[-1] if below.numel() else values[0])


def token_weight(log_scale_R: Tensor, rollout_N: Tensor, weight_N: Tensor | None = None, keep_N: Tensor | None = None) -> Tensor:
    """w_N = exp(log_scale_R)[rollout_N] * weight_N, 0 where ``keep_N`` is False: one detached factor a token, float64."""
    w_N = log_scale_R.detach().double().exp()[rollout_N]
    return masked(w_N if weight_N is None else w_N * weight_N.detach(), keep_N)
