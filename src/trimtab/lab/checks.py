"""What would make a claim true or false, as comparisons of measured numbers, and the verdict that follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from trimtab.lab.options import At, Options, Scalar, Where
from trimtab.lab.results import Results

Verdict = Literal["reproduced", "partly", "not reproduced at this scale", "not judged"]


class Bound(Options):
    """A number to compare with: ``value``, or what ``measure`` has at other cells, times ``factor``, plus ``plus``.

    The other cells are those with the subject's own axis values, except for what ``arm`` and ``at`` say. Where they are several,
    ``best`` takes the highest, ``worst`` the lowest of them.
    """

    value: float | None = None
    arm: str | tuple[str, ...] | None = Field(None, description="default: the subject's own")
    at: dict[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)
    measure: str | None = Field(None, description="default: the check's own")
    take: Literal["best", "worst", "mean"] = "best"
    factor: float = 1.0
    plus: float = 0.0

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.value is None and self.arm is None and not self.at and self.measure is None:
            raise ValueError("a bound is a number, or says arm, at or measure")
        return self

    def cells(self, arm: str, at: At, results: Results) -> list[str]:
        """Names of the cells compared with."""
        wanted = Where(arm=self.arm or arm, at={**{axis: value for axis, value in at.items() if axis not in self.at}, **self.at})
        return [c.name for c in results.cells if wanted.holds(c.arm, {k: v for k, v in c.at.items() if k in wanted.at})]


class Check(Options):
    """One comparison: ``measure`` of every chosen cell is at least, or at most, a bound."""

    says: str = Field(description="one sentence, true where the check holds")
    measure: str
    arm: str | tuple[str, ...] = "*"
    at: dict[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)
    at_least: float | Bound | None = None
    at_most: float | Bound | None = None
    over: Literal["mean", "every seed", "most seeds"] = Field("mean", description="seeds are compared one by one, or their means")
    cells: Literal["all", "any"] = Field("all", description="of the chosen cells: every one, or at least one, must fulfil it")
    control: bool = Field(False, description="a condition of the experiment, not part of the claim: where it fails nothing is shown")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("give one of at_least and at_most")
        return self

    @property
    def bound(self) -> Bound:
        bound = self.at_least if self.at_least is not None else self.at_most
        return bound if isinstance(bound, Bound) else Bound(value=bound)

    def where(self) -> Where:
        return Where(arm=self.arm, at=self.at)

    def of(self, results: Results) -> Finding:
        """Whether it holds; None where a number is missing."""
        chosen = [c for c in results.cells if self.where().holds(c.arm, c.at)]
        compared = [self._compare(c.name, c.arm, c.at, results) for c in chosen]
        sentences = tuple(c.text for c in compared)
        states = [c.holds for c in compared]
        decide = all if self.cells == "all" else any
        settled = (self.cells == "any" and True in states) or (self.cells == "all" and False in states)
        holds = None if not states or (None in states and not settled) else decide(bool(s) for s in states)
        return Finding(self.says, holds, self.control, sentences)

    def _compare(self, name: str, arm: str, at: At, results: Results) -> _Compared:
        mine = results.by_seed(name, self.measure)
        limit = self._limits(arm, at, results, sorted(mine))
        sign = ">=" if self.at_least is not None else "<="
        if self.over == "mean":
            pairs = [(_mean(mine.values()), _mean(limit.values()))] if mine and limit else []
        else:
            pairs = [(mine[s], limit[s]) for s in mine if s in limit]
        if not pairs or any(math.isnan(x) for pair in pairs for x in pair):
            return _Compared(f"{name}: no number yet", None)
        good = [x >= y if self.at_least is not None else x <= y for x, y in pairs]
        holds = sum(good) * 2 > len(good) if self.over == "most seeds" else all(good)
        if self.over == "mean":
            text = f"{name}: {pairs[0][0]:.3g} {sign if holds else 'is not ' + sign} {pairs[0][1]:.3g}"
        else:
            told = ", ".join(f"{x:.3g} {sign if ok else 'is not ' + sign} {y:.3g}" for (x, y), ok in zip(pairs, good, strict=True))
            text = f"{name}: {sum(good)} of {len(good)} seeds, {told}"
        return _Compared(text, holds)

    def _limits(self, arm: str, at: At, results: Results, seeds: Sequence[int]) -> Mapping[int, float]:
        """The bound by seed."""
        b = self.bound
        if b.value is not None:
            return dict.fromkeys(seeds, b.factor * b.value + b.plus)
        others = [results.by_seed(name, b.measure or self.measure) for name in b.cells(arm, at, results)]
        take = TAKE[b.take]
        if self.over == "mean":  # of the cells' means, so that the best is the same cell for every seed
            means = [_mean(o.values()) for o in others if o]
            return {s: b.factor * take(means) + b.plus for s in seeds} if means and len(means) == len(others) else {}
        shared = [s for s in seeds if others and all(s in o for o in others)]
        return {s: b.factor * take([o[s] for o in others]) + b.plus for s in shared}


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a check: holds, does not, or None where numbers are missing; the comparisons it rests on."""

    says: str
    holds: bool | None
    control: bool
    compared: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Compared:
    text: str
    holds: bool | None


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else math.nan


TAKE: Mapping[str, Callable[[Iterable[float]], float]] = {"best": max, "worst": min, "mean": _mean}


def verdict(findings: Sequence[Finding]) -> Verdict:
    """All checks of the claim hold: reproduced; some: partly; none, or a control fails: not reproduced; a number lacks: not judged."""
    if any(f.holds is None for f in findings) or not findings:
        return "not judged"
    claims = [f.holds for f in findings if not f.control]
    if any(f.holds is False for f in findings if f.control) or not any(claims):
        return "not reproduced at this scale"
    return "reproduced" if all(claims) else "partly"
