"""Metrics over batches or seconds: a line a cell, the range of its seeds around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trimtab.lab import figures as spec
from trimtab.lab.drawing.material import CHARACTER, WIDTH, Look, Material, head, top_of
from trimtab.lab.measures import Alarm, CellRun, Crosses
from trimtab.lab.results import CellName
from trimtab.lab.series import seconds, so_far
from trimtab.report import palette, style
from trimtab.report.style import F64
from trimtab.telemetry.names import described

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLOOR = 1e-6  # of logarithmic axes: on-policy, KL is 0
POINTS = 600  # a curve


def curves(figure: spec.Curves, m: Material) -> Figure | None:
    cells = m.chosen(figure)
    shown = [(c, label, _aligned(figure, c, m)) for c, label in zip(cells, m.labels(cells), strict=True)]
    shown = [(c, label, runs) for c, label, runs in shown if runs]
    if not shown:
        return None
    note = _note(figure, [runs for _, _, runs in shown])
    n, top = len(figure.panels), top_of(figure, note) + 0.3
    right = 0.3 + CHARACTER * max(len(label) + 6 for _, label, _ in shown)
    drawn, axes = style.canvas(n, width=WIDTH, height=top + 0.4 + 1.75 * n, right=right, top=top, hspace=0.5)
    for ax, panel in zip(axes, figure.panels, strict=True):
        _panel(ax, panel, figure, shown, m.looks(cells))
    batches = "batch" if figure.align is None else f"batches from the {m.title(figure.align)}"
    axes[-1].set_xlabel("seconds of training" if figure.over == "seconds" else batches)
    style.whole_ticks(axes[-1])
    head(drawn, figure, note)
    return drawn


_Placed = tuple[CellRun, int]  # a run, and the place of its batch 0 on the axis


def _note(figure: spec.Curves, shown: Sequence[Sequence[_Placed]]) -> str:
    """What lines and bands are."""
    seeds = sorted({len(runs) for runs in shown})
    several, smooth, logs = seeds[-1] > 1, figure.smooth > 1, [panel.log for panel in figure.panels]
    middle = "median" if figure.align or all(logs) else "mean"
    uneven = figure.over == "seconds" or any(len({(begin, len(run.metrics)) for run, begin in runs}) > 1 for runs in shown)
    out = [f"{'–'.join(map(str, seeds))} seeds: {middle}{' while all run,' if uneven else ''} and range." if several else "One seed."]
    if smooth:
        out.append(f"{'Geometric means' if all(logs) else 'Means'} of {figure.smooth} batches.")
    there = [*(["median"] if several and middle == "mean" else []), *(["geometric means"] if smooth else [])]
    if any(logs) and not all(logs) and there:
        out.append(f"Logarithmic panels: {', '.join(there)}.")
    return " ".join(out)


def _aligned(figure: spec.Curves, cell: CellName, m: Material) -> list[_Placed]:
    if figure.align is None:
        return [(run, 0) for run in m.runs[cell.name]]
    moment = m.measures[figure.align]
    assert isinstance(moment, Crosses | Alarm)
    found = [(run, moment.of(run)) for run in m.runs[cell.name]]
    return [(run, -int(batch)) for run, batch in found if np.isfinite(batch)]


def _panel(
    ax: Axes, panel: spec.PanelSpec, figure: spec.Curves, shown: Sequence[tuple[CellName, str, list[_Placed]]], looks: Mapping[str, Look]
) -> None:
    if panel.log:
        ax.set_yscale("log")
    ends = []
    for cell, label, placed in shown:
        x, y = (_over_seconds if figure.over == "seconds" else _over_batches)(panel, figure, placed)
        known = np.isfinite(y).any(axis=0)
        if not known.any():
            continue
        x, y = x[known], y[:, known]
        color = looks[cell.name].color
        if len(placed) > 1:
            ax.fill_between(x, np.nanmin(y, axis=0), np.nanmax(y, axis=0), color=color, alpha=0.16, lw=0)
        shared = _shared(y)
        x, y = x[shared], y[:, shared]
        if not len(x):
            continue
        middle = np.nanmedian(y, axis=0) if panel.log or figure.align else np.nanmean(y, axis=0)
        ax.plot(*style.thin(x, middle, POINTS), color=color, ls=looks[cell.name].dashes, lw=1.6)
        end = float(middle[-1])
        ends.append((end, f"{label} {'0' if panel.log and end <= FLOOR * 1.01 else style.short(end)}", color))
    ax.margins(x=0)
    if panel.log:
        style.log_ticks(ax)
    else:
        low, high = ax.get_ylim()
        ax.set_ylim(min(0.0, low) if panel.low is None else panel.low, high if panel.high is None else panel.high)
    if figure.align is not None:
        ax.axvline(0, color=palette.GRAY, lw=0.8, ls=":")
    title = panel.title or panel.metric
    ax.set_title(title, loc="left", fontsize=9.5, fontweight="bold", color=palette.INK, pad=15)
    meaning = panel.note or (described(panel.metric) or ("", ""))[1]
    ax.annotate(meaning, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", fontsize=8, color=palette.GRAY)
    style.label_ends(ax, ends)


def _shared(y: F64) -> slice:
    """From where the last seed begins to where the first one ends: beyond, a mean would be that of the survivors."""
    places = [np.flatnonzero(row) for row in np.isfinite(y)]
    return slice(max(p[0] for p in places if len(p)), min(p[-1] for p in places if len(p)) + 1)


def _over_batches(panel: spec.PanelSpec, figure: spec.Curves, placed: Sequence[_Placed]) -> tuple[F64, F64]:
    """Batches, and one row a run: trailing means, NaN where a run has no value."""
    smoothed = [(begin, _smoothed(panel, figure, run)) for run, begin in placed]
    low, high = min(b for b, _ in smoothed), max(b + len(y) for b, y in smoothed)
    if figure.align is not None:
        low, high = max(low, -figure.before), min(high, figure.after + 1)
    out = np.full((len(smoothed), max(0, high - low)), np.nan)
    for row, (begin, y) in zip(out, smoothed, strict=True):
        first, last = max(begin, low), min(begin + len(y), high)
        row[first - low : max(first, last) - low] = y[first - begin : max(first, last) - begin]
    return np.arange(low, high, dtype=np.float64), out


def _over_seconds(panel: spec.PanelSpec, figure: spec.Curves, placed: Sequence[_Placed]) -> tuple[F64, F64]:
    """Seconds of training, and one row a run: the last known trailing mean, NaN outside of the run."""
    ends = [(seconds(run), _smoothed(panel, figure, run)) for run, _ in placed]
    x = np.linspace(0.0, max(float(t[-1]) for t, _ in ends), POINTS)
    out = np.full((len(ends), POINTS), np.nan)
    for row, (t, y) in zip(out, ends, strict=True):
        last = np.searchsorted(t, x, side="right") - 1
        inside = (last >= 0) & (x <= t[-1] + (t[-1] / max(1, len(t))))
        row[inside] = y[last[inside]]
    return x, out


def _smoothed(panel: spec.PanelSpec, figure: spec.Curves, run: CellRun) -> F64:
    """Trailing means, of logarithms where the axis is logarithmic."""
    y = run.column(panel.metric)
    z = so_far(np.log(np.maximum(y, FLOOR)) if panel.log else y, figure.smooth)
    return np.exp(z) if panel.log else z
