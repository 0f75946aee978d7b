"""How many observations become one number, the same bits in whatever order they come (but for ``last``).

Sums are kept as Shewchuk's non-overlapping partials (Adaptive Precision Floating-Point Arithmetic, 1997; the algorithm behind
``math.fsum``), so a sum does not depend on the order or the grouping of its addends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Reducer(StrEnum):
    """The rule by which observations of one metric are combined within a batch."""

    MEAN = "mean"  # a rate: sum of numerators over sum of denominators
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    LAST = "last"
    QUANTILE = "quantile"


class Rate(NamedTuple):
    """A rate, stored as its two sums and never as a quotient, so that rates of parts add up to the rate of the whole."""

    numerator: float
    denominator: float

    @property
    def value(self) -> float | None:
        """numerator / denominator; None where nothing was counted."""
        return self.numerator / self.denominator if self.denominator else None


class ExactSum:
    """A float64 sum, correctly rounded whatever the order and grouping of its addends. Non-finite addends make it non-finite."""

    __slots__ = ("_partials", "_special")

    def __init__(self, addends: Iterable[float] = ()) -> None:
        self._partials: list[float] = []
        self._special = 0.0  # the sum of the non-finite addends: 0, inf, -inf or NaN
        for x in addends:
            self.add(x)

    def add(self, x: float) -> None:
        if not math.isfinite(x):
            self._special += x
            return
        kept = 0
        for y in self._partials:
            if abs(x) < abs(y):
                x, y = y, x
            high = x + y
            low = y - (high - x)
            if low:
                self._partials[kept] = low
                kept += 1
            x = high
        self._partials[kept:] = [x]

    @property
    def value(self) -> float:
        return math.fsum(self._partials) if self._special == 0.0 else self._special


class Mean:
    """Numerator and denominator, each summed exactly."""

    __slots__ = ("denominator", "numerator")

    def __init__(self) -> None:
        self.numerator = ExactSum()
        self.denominator = ExactSum()

    def add(self, numerator: float, denominator: float = 1.0) -> None:
        self.numerator.add(numerator)
        self.denominator.add(denominator)

    @property
    def value(self) -> Rate:
        return Rate(self.numerator.value, self.denominator.value)


class Extreme:
    """``max``, ``min`` or ``last`` of the observations. A NaN is never overlooked: it is the maximum and the minimum."""

    __slots__ = ("_reducer", "value")

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self.value: float | None = None

    def add(self, x: float) -> None:
        if self.value is None or self._reducer is Reducer.LAST:
            self.value = x
        elif not math.isnan(self.value):
            larger = math.isnan(x) or (x > self.value if self._reducer is Reducer.MAX else x < self.value)
            self.value = x if larger else self.value


class Samples:
    """All observations, kept until the batch is closed: quantiles of parts do not determine that of the whole."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.float64]] = []

    def add(self, values: npt.ArrayLike) -> None:
        self._parts.append(np.asarray(values, dtype=np.float64).ravel())

    def quantile(self, q: float) -> float | None:
        """NumPy's linear quantile; None where nothing was observed, NaN where an observation was NaN."""
        values = np.concatenate(self._parts) if self._parts else np.zeros(0)
        if not values.size:
            return None
        with np.errstate(invalid="ignore"):  # between two infinities
            return float(np.quantile(values, q))
