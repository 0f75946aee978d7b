"""One batch's metrics while they accumulate, and the record they become."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy.typing as npt

from trimtab.records import Json
from trimtab.telemetry.names import KNOWN, METHOD_PREFIX, declared
from trimtab.telemetry.reducers import ExactSum, Extreme, Mean, Rate, Reducer, Samples

Value = float | Rate
LARGEST = 1e100  # what is beyond means nothing, and sums of squares of it are infinite: readers leave it out as they do NaN


class Metrics:
    """Accumulates the metrics of one batch; the order in which updates and micro-batches tell of theirs changes no bit.

    ``put`` takes one observation of a declared metric, ``metric`` a numerator and a denominator (the ``Recorder`` of the methods:
    undeclared names go under ``method/``), ``sample`` the observations a family of quantiles is taken from. A quantile may also
    be ``put`` once, already taken over the whole batch.
    """

    def __init__(self) -> None:
        self._means: dict[str, Mean] = {}
        self._sums: dict[str, ExactSum] = {}
        self._extremes: dict[str, Extreme] = {}
        self._samples: dict[str, Samples] = {}
        self._taken: dict[str, float] = {}

    def put(self, name: str, value: float) -> None:
        (metric,) = declared([name])
        if metric.reducer is Reducer.MEAN:
            self._means.setdefault(name, Mean()).add(value)
        elif metric.reducer is Reducer.SUM:
            self._sums.setdefault(name, ExactSum()).add(value)
        elif metric.reducer is Reducer.QUANTILE:
            self._take(name, value)
        else:
            self._extremes.setdefault(name, Extreme(metric.reducer)).add(value)

    def metric(self, name: str, numerator: float, denominator: float = 1.0) -> None:
        if name in KNOWN and KNOWN[name].reducer is not Reducer.MEAN:
            raise ValueError(f"metric {name!r} is a {KNOWN[name].reducer}, not a rate; use put")
        if name not in KNOWN and not name.startswith(METHOD_PREFIX):
            name = METHOD_PREFIX + name
        self._means.setdefault(name, Mean()).add(numerator, denominator)

    def extend(self, scalars: Mapping[str, float], rates: Mapping[str, tuple[float, float]]) -> None:
        """``put`` every scalar and ``metric`` every rate."""
        for name, value in scalars.items():
            self.put(name, value)
        for name, (numerator, denominator) in rates.items():
            self.metric(name, numerator, denominator)

    def _take(self, name: str, value: float) -> None:
        if name in self._taken:
            raise ValueError(f"quantile {name!r} was already put; two do not make one, sample({KNOWN[name].family!r}, values) takes more")
        self._taken[name] = value

    def sample(self, family: str, values: npt.ArrayLike) -> None:
        if not any(m.family == family for m in KNOWN.values()):
            raise ValueError(f"no declared quantile is taken from samples {family!r}")
        self._samples.setdefault(family, Samples()).add(values)

    def values(self) -> dict[str, Value]:
        """What was observed, by name: a :class:`Rate` for means, a float for the rest."""
        out: dict[str, Value] = {name: mean.value for name, mean in self._means.items()}
        out.update(self._taken)
        out.update((name, total.value) for name, total in self._sums.items())
        out.update((name, extreme.value) for name, extreme in self._extremes.items() if extreme.value is not None)
        for metric in KNOWN.values():
            if metric.family in self._samples:
                quantile = self._samples[metric.family].quantile(metric.q)
                if quantile is not None:
                    out[metric.name] = quantile
        return dict(sorted(out.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """One consumed batch, one line of ``metrics.jsonl``.

    ``ages`` counts tokens by age; ``ages_generation`` sums, for the tokens of each age, the part of it that arose before their
    group was complete (the rest: waiting). ``by_age`` compares current and behavior policy at each age: ``tokens`` and the means
    ``kl`` (k3), ``ratio_mean``, ``log_ratio_abs_mean`` over them. ``faults``: why responses judged since the last batch got no
    verdict, the most frequent reasons and how often each.
    """

    batch: int  # from 0
    version: int
    incarnation: int
    time: float  # seconds since the run started
    applied: bool
    reason: str = ""  # why it was skipped
    metrics: Mapping[str, Value]
    ages: Mapping[str, int] = field(default_factory=dict)
    ages_generation: Mapping[str, int] = field(default_factory=dict)
    by_age: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    faults: Mapping[str, int] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """The metric as one finite number; None where it was not observed or is not finite."""
        found = self.metrics.get(name)
        number = found.value if isinstance(found, Rate) else found
        return number if number is not None and math.isfinite(number) else None

    def nonfinite(self) -> list[str]:
        """Names of the metrics and age rows that hold NaN or an infinity."""
        return [name for name, x in self._floats() if not math.isfinite(x)]

    def _floats(self) -> Iterator[tuple[str, float]]:
        for name, value in self.metrics.items():
            for x in value if isinstance(value, Rate) else (value,):
                yield name, x
        for bucket, row in self.by_age.items():
            for name, x in row.items():
                yield f"by_age {bucket} {name}", x

    def to_json(self) -> dict[str, Json]:
        """The line's object; a rate is ``[numerator, denominator]``, what is not finite is null."""
        return {
            "batch": self.batch,
            "version": self.version,
            "incarnation": self.incarnation,
            "time": finite(self.time),
            "applied": self.applied,
            "reason": self.reason,
            "metrics": {name: _json(value) for name, value in self.metrics.items()},
            "ages": dict(self.ages),
            "ages_generation": dict(self.ages_generation),
            "by_age": {bucket: {k: finite(x) for k, x in row.items()} for bucket, row in self.by_age.items()},
            "faults": dict(self.faults),
        }


def _json(value: Value) -> Json:
    return [finite(value.numerator), finite(value.denominator)] if isinstance(value, Rate) else finite(value)


def finite(x: float) -> float | None:
    """JSON has no NaN and no infinities."""
    return x if math.isfinite(x) else None


def pair(value: Json) -> tuple[float, float] | None:
    """A metric as stored, a number or ``[numerator, denominator]``, as numerator and denominator; None beyond ``LARGEST``."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (float(value), 1.0) if abs(value) <= LARGEST else None
    if isinstance(value, list) and len(value) == 2:
        n, d = (pair(x) for x in value)
        return (n[0], d[0]) if n and d and d[0] else None
    return None


def number(value: Json) -> float | None:
    """A metric as stored, as one number; None where there is none."""
    found = pair(value)
    ratio = None if found is None else found[0] / found[1]
    return None if ratio is None or not abs(ratio) <= LARGEST else ratio
