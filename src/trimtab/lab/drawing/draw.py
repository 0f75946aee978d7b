"""Figures of an experiment, drawn from its stored runs and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.lab import figures as spec
from trimtab.lab.drawing.cells import bars, heat, sweep
from trimtab.lab.drawing.curves import curves
from trimtab.lab.drawing.material import Material

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(figure: spec.Figure, material: Material) -> Figure | None:
    """The drawn figure; None where no run has what it shows."""
    if isinstance(figure, spec.Curves):
        return curves(figure, material)
    if isinstance(figure, spec.Sweep):
        return sweep(figure, material)
    return bars(figure, material) if isinstance(figure, spec.Bars) else heat(figure, material)
