"""The numbers of an experiment: one value a cell, seed and measure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trimtab.lab.options import At, Scalar

By = Mapping[tuple[str, int], Mapping[str, float]]  # (cell, seed) -> measure -> value


@dataclass(frozen=True, slots=True)
class CellName:
    """A cell of the table: an arm at its axis values, over all its seeds."""

    arm: str
    at: At
    label: str

    @property
    def name(self) -> str:
        """``arm/axis=value/...``: how commands, checks and references call it."""
        return "/".join([self.arm, *(f"{axis}={value}" for axis, value in self.at.items())])

    def value(self, axis: str) -> Scalar:
        """Where it stands on an axis of the grid, or on ``arm``."""
        return self.arm if axis == "arm" else self.at[axis]


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A line of ``trimtab lab show --json``: ``seeds`` is how many seeds gave a number."""

    cell: str
    metric: str
    mean: float
    min: float
    max: float
    seeds: int


@dataclass(frozen=True, slots=True)
class Results:
    """Of the cells, in the experiment's order, what has been run."""

    cells: Sequence[CellName]
    measures: Sequence[str]
    values: By = field(default_factory=dict)

    def by_seed(self, cell: str, measure: str) -> dict[int, float]:
        """Seed -> value, without what is not a number."""
        found = {seed: v[measure] for (name, seed), v in self.values.items() if name == cell and measure in v}
        return {seed: x for seed, x in sorted(found.items()) if not math.isnan(x)}

    def seeds(self, cell: str) -> int:
        """How many seeds have been run."""
        return sum(name == cell for name, _ in self.values)

    def rows(self) -> list[ResultRow]:
        """One a cell and measure; NaN where no seed gave a number."""
        out = []
        for cell in self.cells:
            for measure in self.measures:
                x = list(self.by_seed(cell.name, measure).values())
                nan = math.nan
                mean, low, high = (sum(x) / len(x), min(x), max(x)) if x else (nan, nan, nan)
                out.append(ResultRow(cell.name, measure, mean, low, high, len(x)))
        return out
