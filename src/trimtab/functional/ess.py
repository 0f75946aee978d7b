"""Effective sample size of importance weights, and the step multiplier that follows it (VCPO, arXiv 2602.17616, Eq. 4 and 5)."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from trimtab.functional.weights import truncate


class Ess(NamedTuple):
    """``value`` in [1, B], ``ratio`` = value / B in [1/B, 1]; ``finite`` is False where any log-weight is NaN or infinite."""

    value: float
    ratio: float
    finite: bool


def ess(log_w_R: Tensor, cap: float | None = None) -> Ess:
    """ESS = (sum w)^2 / sum w^2 of the weights w = exp(log_w_R), over all rollouts of one optimizer step.

    Computed in float64 from log-weights shifted by their maximum, so that any scale of the weights gives the same result and
    nothing overflows. Unclipped by default, as published: truncation hides the tail that ESS is there to detect. ``cap``
    truncates at w = cap first (one of the released code's options).

    A log-weight of -inf is a weight of exactly 0; with none above 0, and for an empty input, value and ratio are 0. With a NaN
    or +inf, value and ratio are NaN. In all these cases ``finite`` is False (True for the empty input): the caller refuses the
    step unless it put the zeros there itself.
    """
    s = log_w_R.detach().double().flatten()
    if s.numel() == 0:
        return Ess(0.0, 0.0, True)
    finite = bool(torch.isfinite(s).all())
    if bool((torch.isnan(s) | (s == math.inf)).any()):
        return Ess(math.nan, math.nan, False)
    if cap is not None:
        s = truncate(s, cap)
    top = s.max()
    if top == -math.inf:
        return Ess(0.0, 0.0, False)
    w = (s - top).exp()
    value = float(w.sum().square() / w.square().sum())
    value = min(max(value, 1.0), float(s.numel()))  # rounding only; the bounds are Cauchy-Schwarz
    return Ess(value, value / s.numel(), finite)


def ess_multiplier(
    ratio: float, *, rule: Literal["sqrt", "linear"] = "sqrt", reference: float = 1.0, floor: float = 0.0, dead_band: float = 0.0
) -> float:
    """Learning-rate multiplier: m = min(1, ratio / reference), then sqrt(m) (adaptive optimizers) or m (SGD), at least ``floor``.

    ``reference`` is the ratio of on-policy batches; the published runs use the constant 1, or 0.55 for multi-turn tool use. 1 while
    ratio >= (1 - dead_band) reference.

    Raises:
        ValueError: ``ratio`` is not finite (min(1, NaN) would be a full step at the worst moment), or reference <= 0.
    """
    if not math.isfinite(ratio):
        raise ValueError(f"ess_multiplier: ratio = {ratio}; refuse the step where the effective sample size is not finite")
    if reference <= 0.0:
        raise ValueError(f"ess_multiplier: reference = {reference}; the on-policy ratio lies in (0, 1]")
    if ratio >= (1.0 - dead_band) * reference:
        return 1.0
    m = ratio / reference
    return max(floor, math.sqrt(m) if rule == "sqrt" else m)
