"""Drawing the small multiples that are curves over batches, for one run or several.

One run: a color a curve, labeled at its end. Several runs: a color a run (the page has the legend), further curves dashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trimtab.report import palette, style
from trimtab.report.figures import Axis, Curve, Figure
from trimtab.report.runfiles import Run
from trimtab.telemetry.metrics import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 900  # of all raw curves of a panel together: more are not visible at a panel's width
SMOOTH = 10  # batches averaged, as in the detectors


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure of the page. ``svg`` is empty where nothing was recorded; ``missing`` then says what."""

    title: str
    caption: str
    svg: str = ""
    missing: str = ""
    wide: bool = False


def draw(figure: Figure, runs: Sequence[Run]) -> Panel:
    """The panel of a figure, or the sentence that says what was not recorded."""
    names = [curve.metric for axis in figure.axes for curve in axis.curves]
    heldout = any(axis.heldout for axis in figure.axes) and any(run.evaluations for run in runs)
    if not heldout and not any(run.series(name)[0].size for run in runs for name in names):
        return Panel(figure.title, figure.caption, missing=f"Not recorded: no batch has {' or '.join(names)}.")
    canvas, axes = style.canvas(len(figure.axes), right=style.LABELS if len(runs) == 1 else 0.1)
    last = max((float(run.batches[-1]) + 1.0 for run in runs if run.batches.size), default=1.0)  # evaluations come after a batch
    for axis, ax in zip(figure.axes, axes, strict=True):
        _draw_axis(axis, ax, runs, last)
    axes[-1].set_xlabel("batch")
    style.whole_ticks(axes[-1])
    caption = figure.caption if len(runs) == 1 else f"{figure.caption} {_key(figure)}"
    return Panel(figure.title, caption.strip(), style.svg(canvas, figure.title))


def _key(figure: Figure) -> str:
    """Which line is which where color tells the runs apart."""
    curves = [curve for axis in figure.axes for curve in axis.curves if not curve.alone]
    if not any(curve.dashed for curve in curves):
        return ""
    return f"Solid: {', '.join(c.label for c in curves if not c.dashed)}. Dashed: {', '.join(c.label for c in curves if c.dashed)}."


def _draw_axis(axis: Axis, ax: Axes, runs: Sequence[Run], last: float) -> None:
    ends: list[tuple[float, str, str]] = []
    budget = max(60, POINTS // (len(runs) * len(axis.curves)))
    if axis.log:
        ax.set_yscale("log")
    for r, run in enumerate(runs):
        shown = 0
        for curve in axis.curves:
            if curve.alone and len(runs) > 1:
                continue
            x, y = run.share(curve.metric) if curve.share else run.series(curve.metric)
            if axis.log and not axis.floor:
                x, y = x[y > 0], y[y > 0]
            if not x.size or (curve.metric in _RARE and not y.any()):
                continue
            color = style.COLORS[(shown if len(runs) == 1 else r) % len(style.COLORS)]
            shown += 1
            end = _draw_curve(curve, ax, x, y, color, budget, axis)
            ends.append((max(end, axis.floor) if axis.floor else end, f"{curve.label} {style.short(end)}", color))
        if axis.heldout:
            color = style.COLORS[1 if len(runs) == 1 else r % len(style.COLORS)]
            if run.evaluations:
                _draw_evaluations(ax, run, color)
                when, found = run.evaluations[-1]
                at = "" if when > 0.9 * last else f" at {when:.0f}"
                ends.append((found.score.mean, f"held-out {style.short(found.score.mean)}{at}", color))
        _marks(axis, ax, run, palette.ORANGE if len(runs) == 1 else style.COLORS[r % len(style.COLORS)], r)
    ax.set_xlim(0.0, max(last, 1.0))
    if not axis.log:
        bottom, top = ax.get_ylim()
        ax.set_ylim(
            axis.low if axis.low is not None and ax.dataLim.y0 >= axis.low else bottom,
            1.02 * axis.high if axis.high is not None and ax.dataLim.y1 <= axis.high else top,
        )
    else:
        style.log_ticks(ax)
    if axis.zero:
        ax.axhline(0.0, color=palette.GRAY, lw=0.7)
    ax.set_ylabel(axis.unit)
    if len(runs) == 1:
        style.label_ends(ax, ends)


_RARE = frozenset({"outcome/unparseable", "outcome/timeout", "outcome/error"})  # drawn only where they happened


def _draw_curve(curve: Curve, ax: Axes, x: style.F64, y: style.F64, color: str, budget: int, axis: Axis) -> float:
    """Draw it; where it ends."""
    strong = style.smooth(y, max(SMOOTH, len(y) // 100), axis.log) if curve.smooth else y
    shown, smoothed = (np.maximum(z, axis.floor) if axis.floor else z for z in (y, strong))
    few = len(x) <= 2 * SMOOTH
    if (curve.raw or few) and curve.smooth:
        ax.plot(
            *style.thin(x, shown, budget),
            color=color,
            lw=0.6,
            alpha=0.35 if len(x) < 800 else 0.2,
            marker="o" if few else None,
            ms=2.0,
            mew=0,
        )
    ax.plot(*style.thin(x, smoothed, budget), color=color, ls=(0, (3, 1.6)) if curve.dashed else "-", lw=1.1 if curve.dashed else 1.3)
    return float(strong[-1])


def _draw_evaluations(ax: Axes, run: Run, color: str) -> None:
    """Dots with their intervals; three or more that are believed are joined by a line, two are no course of anything."""
    believed = [(x, found.score.mean) for x, found in run.believed]
    if len(believed) > 2:
        ax.plot(*zip(*believed, strict=True), color=color, lw=0.8, ls=":", zorder=4)
    for x, found in run.evaluations:
        y = found.score
        face = palette.PAGE if found.doubtful else color
        ax.plot([x], [y.mean], "o", color=color, ms=3.2, mfc=face, mew=1.1, zorder=4, clip_on=False)
        if y.low is not None and y.high is not None:
            ax.vlines(x, y.low, y.high, color=color, lw=0.9, zorder=3, clip_on=False)


def _marks(axis: Axis, ax: Axes, run: Run, color: str, row: int) -> None:
    """Events at the top, skipped batches at the bottom."""
    found = [number(event.get("batch")) for event in run.events if event.get("name") in axis.marks]
    at = [batch for batch in found if batch is not None]
    if at:
        ax.plot(at, np.full(len(at), 1.03), "v", color=color, ms=3.6, mew=0, transform=ax.get_xaxis_transform(), clip_on=False)
    if axis.skipped and not run.applied.all():
        skipped = run.batches[~run.applied]
        ax.plot(skipped, np.full(len(skipped), 0.02 + 0.05 * row), "|", color=color, ms=4.5, mew=0.6, transform=ax.get_xaxis_transform())
