"""What figures are drawn from, and the margin of title and note that all of them have."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.lab import figures as spec
from trimtab.lab.measures import CellRun, Measure
from trimtab.lab.options import Scalar
from trimtab.lab.results import CellName, Results
from trimtab.report import palette, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 7.2
CHARACTER = 0.06  # inches of a label's letter


@dataclass(frozen=True, slots=True)
class Look:
    """More lines than colors: the second round is dashed."""

    color: str
    dashes: str


@dataclass(frozen=True)
class Material:
    """What figures are made of."""

    results: Results
    measures: Mapping[str, Measure]
    runs: Mapping[str, Sequence[CellRun]]  # cell -> its seeds
    arms: Sequence[str]  # in the experiment's order: an arm has the same color everywhere
    axes: Mapping[str, str]  # axis of the grid -> what figures call it

    def chosen(self, figure: spec.Figure) -> list[CellName]:
        return [c for c in self.results.cells if figure.holds(c.arm, c.at) and self.runs.get(c.name)]

    def looks(self, cells: Sequence[CellName]) -> dict[str, Look]:
        """Cell -> look. An arm looks the same in every figure, except where one figure shows it more than once."""
        several = len({c.arm for c in cells}) < len(cells)
        places = {c.name: i if several else self.arms.index(c.arm) for i, c in enumerate(cells)}
        n = len(style.COLORS)
        return {name: Look(style.COLORS[i % n], ("-", "--", ":")[i // n % 3]) for name, i in places.items()}

    def of_arm(self, arm: str) -> Look:
        return self.looks([CellName(arm, {}, arm)])[arm]

    def labels(self, cells: Sequence[CellName]) -> list[str]:
        """Arm, where they differ in it, and the axis values they differ in."""
        arms = len({c.arm for c in cells}) > 1 or len(cells) == 1
        axes = [a for a in (cells[0].at if cells else {}) if len({c.at.get(a) for c in cells}) > 1]
        return [", ".join([*([c.label] if arms else []), *(f"{self.axes[a]} {c.at[a]}" for a in axes)]) for c in cells]

    def values(self, axis: str, cells: Sequence[CellName]) -> list[Scalar]:
        """Where the cells stand on an axis, or their arms, in the experiment's order."""
        there = {c.value(axis) for c in cells}
        return list(dict.fromkeys(c.value(axis) for c in self.results.cells if c.value(axis) in there))

    def numbers(self, cell: CellName, measure: str) -> list[float]:
        """A measure of the cell, of the seeds that have it."""
        return list(self.results.by_seed(cell.name, measure).values())

    def lacking(self, cell: CellName, measure: str) -> str:
        """`2 of 3 seeds` where the third has no such number, as a run that never fell; nothing where all have it."""
        have, ran = len(self.numbers(cell, measure)), self.results.seeds(cell.name)
        return f"{have} of {ran} seeds" if have < ran else ""

    def title(self, measure: str) -> str:
        return self.measures[measure].label or measure


def head(drawn: Figure, figure: spec.Figure, note: str = "") -> None:
    """Title and note, in the margin that ``canvas`` left at the top."""
    width, height = drawn.get_size_inches()
    x = style.LEFT / width
    drawn.text(x, 1 - 0.3 / height, figure.title, fontsize=12, fontweight="bold", color=palette.INK)
    text = " ".join(part for part in (figure.note, note) if part)
    drawn.text(x, 1 - 0.5 / height, _wrapped(text, int((width - style.LEFT) / 0.066)), fontsize=8, color=palette.GRAY, va="top")


def _wrapped(text: str, letters: int) -> str:
    return "\n".join(textwrap.wrap(text, letters))


def top_of(figure: spec.Figure, note: str = "", width: float = WIDTH) -> float:
    """Inches that title and note take."""
    lines = _wrapped(" ".join((figure.note, note)).strip(), int((width - style.LEFT) / 0.066)).count("\n") + 1
    return 0.62 + 0.15 * lines
