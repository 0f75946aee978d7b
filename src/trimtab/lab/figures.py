"""The vocabulary of figures. Every figure has a title that says what is to be seen, in words a stranger understands."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trimtab.config.shaped import shaped
from trimtab.lab.options import OfMetric, Where


class _Figure(Where):
    name: Annotated[str, shaped(r"[a-z0-9][a-z0-9-]{0,99}", "use lower-case letters, digits and hyphens, 100 at most, no hyphen first")] = (
        Field(description="of its files")
    )
    title: str = Field(description="what is to be seen, one short sentence")
    note: str = Field("", description="below the title: what the reader must know to read it")

    def axes(self) -> tuple[str, ...]:
        """Axes of the grid that it names."""
        return ()


class PanelSpec(OfMetric):
    """One metric, drawn over batches."""

    title: str = ""
    note: str = Field("", description="what it is and which way is good")
    log: bool = False
    low: float | None = Field(None, description="lower end of the vertical axis; default: 0, or the data's where it is logarithmic")
    high: float | None = None


class Curves(_Figure):
    """Metrics over batches, or ``over`` seconds of training, in stacked panels: the mean over seeds (in logarithmic panels the median)
    in one line a cell for as long as all of them run, their range around it.

    ``align``: a measure that is a moment of a run (``crosses`` or ``alarm``); batches are then counted from it, and only runs that
    have it are drawn, by their median.
    """

    kind: Literal["curves"]
    panels: tuple[PanelSpec, ...] = Field(min_length=1)
    over: Literal["batches", "seconds"] = "batches"
    smooth: int = Field(10, ge=1, description="batches of the trailing mean drawn")
    align: str | None = None
    before: int = Field(60, ge=1, description="batches drawn before the moment aligned by")
    after: int = Field(40, ge=1)


class Sweep(_Figure):
    """A measure over an axis, one line an arm: the mean over seeds, with the range of seeds and every seed as a dot."""

    kind: Literal["sweep"]
    axis: str
    measure: str
    low: float | None = None
    high: float | None = None

    def axes(self) -> tuple[str, ...]:
        return (self.axis,)


class Bars(_Figure):
    """A measure of every cell as a bar of the mean and a dot a seed; cells of one value of ``by`` stand together."""

    kind: Literal["bars"]
    measure: str
    by: str | None = None
    low: float | None = None
    high: float | None = None

    def axes(self) -> tuple[str, ...]:
        return () if self.by is None else (self.by,)


class Heat(_Figure):
    """A measure over two axes (or arm and axis) as a table of colored means; one table a value of ``by``, where it is given."""

    kind: Literal["heat"]
    measure: str
    rows: str = Field(description='an axis, or "arm"')
    columns: str
    by: str | None = None

    def axes(self) -> tuple[str, ...]:
        return tuple(axis for axis in (self.rows, self.columns, self.by) if axis is not None and axis != "arm")


Figure = Annotated[Curves | Sweep | Bars | Heat, Field(discriminator="kind")]
