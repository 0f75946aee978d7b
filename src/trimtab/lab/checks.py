"""What would make a claim true or false, as comparisons of measured numbers, and the verdict that follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from trimtab.lab.options import At, ExperimentOptions, Scalar, Where
from trimtab.lab.results import Results

Verdict = Literal["reproduced", "partly", "not reproduced at this scale", "not judged"]
State = Literal["holds", "fails", "not run", "no case"]


class Bound(ExperimentOptions):
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


class Check(ExperimentOptions):
    """One comparison: ``measure`` of every chosen cell is at least, or at most, a bound."""

    says: str = Field(description="one sentence, true where the check holds")
    measure: str
    arm: str | tuple[str, ...] = "*"
    at: dict[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)
    at_least: float | Bound | None = None
    at_most: float | Bound | None = None
    over: Literal["mean", "every seed", "most seeds"] = Field("mean", description="seeds are compared one by one, or their means")
    cells: Literal["all", "any"] = Field("all", description="of the chosen cells: every one, or at least one, must fulfil it")
    never: Literal["fails", "late", "left out"] = Field(
        "fails", description="a finished run without the number: the check fails; a moment later than every other; the run is no case of it"
    )
    control: bool = Field(False, description="a condition of the experiment, not part of the claim: where it fails nothing is judged")
    decisive: bool = Field(False, description="where it fails the claim is not reproduced, whatever else holds")

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

    def of(self, results: Results) -> CheckResult:
        """What the results say to it."""
        chosen = [c for c in results.cells if self.where().holds(c.arm, c.at)]
        compared = [self._compare(c.name, c.arm, c.at, results) for c in chosen]
        states = [c.state for c in compared if c.state != "no case"]
        decide, settling = (all, "fails") if self.cells == "all" else (any, "holds")
        state: State
        if settling not in states and "not run" in states:
            state = "not run"
        elif not states:
            state = "no case" if compared else "not run"
        else:
            state = "holds" if decide(s == "holds" for s in states) else "fails"
        return CheckResult(self.says, state, self.control, self.decisive, tuple(c.text for c in compared))

    def _compare(self, name: str, arm: str, at: At, results: Results) -> _Compared:
        limit = self._limits(arm, at, results)
        if not results.seeds(name) or limit is None:
            return _Compared(f"{name}: not run yet", "not run")
        mine = self._values(name, self.measure, results)
        if self.over == "mean":
            pairs = [(_mean(mine.values()), limit.get(ALL, math.nan))] if mine else []
        else:
            pairs = [(x, limit[s] if s in limit else limit[ALL]) for s, x in mine.items() if s in limit or ALL in limit]
        if not pairs:
            return _Compared(f"{name}: no seed has it", "no case")
        good = [self._fulfils(x, y) for x, y in pairs]
        holds = sum(good) * 2 > len(good) if self.over == "most seeds" else all(good)
        told = ", ".join(self._told(x, y, ok) for (x, y), ok in zip(pairs, good, strict=True))
        ran = results.seeds(name)
        have = len(results.by_seed(name, self.measure))
        several = f"{sum(good)} of {len(good)} seeds, " if self.over != "mean" else f"{have} of {ran} seeds have it, " if have < ran else ""
        return _Compared(f"{name}: {several}{told}", "holds" if holds else "fails")

    def _fulfils(self, x: float, y: float) -> bool:
        """NaN fulfils nothing; what never came is not early, also beside what never came."""
        return x >= y if self.at_least is not None else x <= y and x < math.inf

    def _told(self, x: float, y: float, ok: bool) -> str:
        sign = ">=" if self.at_least is not None else "<="
        left, right = (v if (v := f"{z:.3g}") not in ("nan", "inf") else "never" for z in (x, y))
        return f"{left} {sign if ok else 'is not ' + sign} {right}"

    def _values(self, cell: str, measure: str, results: Results) -> dict[int, float]:
        """By seed, of the runs that ended; what they do not have counts as ``never`` says."""
        found = {seed: v.get(measure, math.nan) for (name, seed), v in sorted(results.values.items()) if name == cell}
        if self.never == "left out":
            return {seed: x for seed, x in found.items() if not math.isnan(x)}
        return {seed: math.inf if self.never == "late" and math.isnan(x) else x for seed, x in found.items()}

    def _limits(self, arm: str, at: At, results: Results) -> Mapping[int, float] | None:
        """The bound by seed, or of ``ALL``; None where a cell that it needs has not been run."""
        b = self.bound
        if b.value is not None:
            return {ALL: b.factor * b.value + b.plus}
        names = b.cells(arm, at, results)
        if not names or not all(results.seeds(name) for name in names):
            return None
        others = [self._values(name, b.measure or self.measure, results) for name in names]
        if self.over == "mean":  # of the cells' means, so that the best is the same cell for every seed
            means = [_mean(o.values()) for o in others if o]
            return {ALL: b.factor * _take(b.take, means) + b.plus} if means else {}
        shared = set.intersection(*(set(o) for o in others))
        return {s: b.factor * _take(b.take, [o[s] for o in others]) + b.plus for s in sorted(shared)}


ALL = -1  # in place of a seed: the bound is the same for all


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What became of a check, and the comparisons it rests on.

    ``not run``: it needs a run that is not there. ``no case``: no run has what it is about, such as an alarm before a fall where none fell.
    """

    says: str
    state: State
    control: bool
    decisive: bool
    compared: tuple[str, ...]

    @property
    def holds(self) -> bool | None:
        return {"holds": True, "fails": False}.get(self.state)

    @property
    def role(self) -> str:
        return "control" if self.control else "decisive" if self.decisive else ""


@dataclass(frozen=True, slots=True)
class _Compared:
    text: str
    state: State


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else math.nan


def _take(which: Literal["best", "worst", "mean"], values: Sequence[float]) -> float:
    return math.nan if any(math.isnan(x) for x in values) else TAKE[which](values)


TAKE: Mapping[str, Callable[[Iterable[float]], float]] = {"best": max, "worst": min, "mean": _mean}


def verdict(findings: Sequence[CheckResult]) -> Verdict:
    """All checks of the claim that have a case hold: reproduced; some: partly; none, or a decisive one fails: not reproduced.

    Not judged: a run is missing, a control fails, or no check has a case.
    """
    claims = [f for f in findings if not f.control and f.state != "no case"]
    if not claims or any(f.state == "not run" for f in findings) or any(f.control and f.state != "holds" for f in findings):
        return "not judged"
    if not any(f.holds for f in claims) or any(f.decisive and f.state == "fails" for f in claims):
        return "not reproduced at this scale"
    return "reproduced" if all(f.holds for f in claims) else "partly"
