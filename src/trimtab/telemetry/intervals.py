"""95 % intervals of means over prompts, and whether two means differ by more than their noise. No dependency but ``math``.

Several responses to one prompt are not independent: what varies is the prompt. All formulas therefore start from the mean of each
prompt, x_1 ... x_m, and their mean x.

**Scores of any kind** (Student): x ± t(.975, m - 1) · s / √m, s the standard deviation of the x_i (m - 1 in its denominator).

**Scores of 0 and 1** (Wilson 1927, at the effective number of draws): clustering multiplies the variance of x by what Kish (1965) calls
the design effect; the responses are worth n_eff = x (1 - x) / v independent ones, v = Σ (x_i - x)² / m², kept between m, the number of
prompts, and n, the number of responses. One response a prompt: n_eff = m, the plain Wilson interval. With z = 1.96,

    (x + z²/2n_eff ± z √(x (1 - x)/n_eff + z²/4n_eff²)) / (1 + z²/n_eff)

It does not shrink to a point where all are right or all are wrong: 0 of 20 is 0 to .16.

**Differences** (Newcombe 1998, method 10, for any two intervals): a rise from x to y has the lower limit
(y - x) - √((y - low_y)² + (high_x - x)²). It takes the two for independent; evaluations of one run share their prompts, which makes
their difference better known than this, so a rise that it calls a rise is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Z = 1.959963984540054  # the .975 quantile of the normal distribution
_NORMAL_FROM = 2000  # degrees of freedom from which Student's t is the normal distribution, to 1e-3

Change = Literal["rose", "fell", "noise", "unknown"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its 95 % interval; without bounds where there is none: one prompt, or a record that has none."""

    mean: float
    low: float | None = None
    high: float | None = None

    def text(self, digits: int = 3) -> str:
        """``0.710 [0.682, 0.738]``."""
        interval = "" if self.low is None or self.high is None else f" [{self.low:.{digits}f}, {self.high:.{digits}f}]"
        return f"{self.mean:.{digits}f}{interval}"


def of_prompts(means: Sequence[float], responses: int, *, binary: bool) -> Estimate:
    """The mean over prompts with its interval. ``means``: of each prompt; ``responses``: all of theirs; ``binary``: each was 0 or 1."""
    mean = mean_of(means)
    return wilson(mean, _effective(means, mean, responses)) if binary else student(means, mean)


def mean_of(values: Sequence[float]) -> float:
    """Exact to the last bit where no value is above 1; finite also where the sum is not."""
    scale = max(1.0, max(abs(x) for x in values))
    return math.fsum(x / scale for x in values) / len(values) * scale


def student(means: Sequence[float], mean: float) -> Estimate:
    m = len(means)
    if m < 2:
        return Estimate(mean)
    largest = max(abs(x - mean) for x in means) or 1.0  # squares of huge scores stay finite
    deviation = largest * math.sqrt(math.fsum(((x - mean) / largest) ** 2 for x in means) / (m - 1))
    half = student_quantile(m - 1) * deviation / math.sqrt(m)
    return Estimate(mean, mean - half, mean + half)


def wilson(share: float, n: float) -> Estimate:
    """Of a share of ``n`` independent draws, not necessarily a whole number of them."""
    middle = share + Z * Z / (2 * n)
    half = Z * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    low, high = ((middle + side * half) / (1 + Z * Z / n) for side in (-1, 1))
    return Estimate(share, max(0.0, min(share, low)), min(1.0, max(share, high)))


def _effective(means: Sequence[float], mean: float, responses: int) -> float:
    m = len(means)
    v = math.fsum((x - mean) ** 2 for x in means) / m**2
    return min(max(mean * (1 - mean) / v, m), responses) if v > 0 else m if mean in (0.0, 1.0) else responses


def student_quantile(df: int) -> float:
    """The .975 quantile of Student's t, by bisection of its distribution function (Abramowitz & Stegun 26.7.3, 26.7.4)."""
    if df >= _NORMAL_FROM:
        return Z
    low, high = Z, 12.71
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, df) < 0.95 else (low, middle)
    return (low + high) / 2


def _inside(t: float, df: int) -> float:
    """P(|T| <= t)."""
    angle = math.atan(t / math.sqrt(df))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = df % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1 + odd, df, 2):  # each term is the one before, times square k / (k + 1)
        total += term
        term *= square * k / (k + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def change(before: Estimate, after: Estimate) -> Change:
    """Whether ``after`` differs from ``before`` by more than the noise of both; unknown where one of them has no interval."""
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return "unknown"
    up = math.hypot(after.mean - after.low, before.high - before.mean)
    down = math.hypot(after.high - after.mean, before.mean - before.low)
    moved = after.mean - before.mean
    return "rose" if moved > up else "fell" if -moved > down else "noise"
