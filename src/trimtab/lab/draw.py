"""Figures of an experiment, drawn from its stored runs and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trimtab.lab import figures as spec
from trimtab.lab.measures import Alarm, CellRun, Crosses, Measure, seconds
from trimtab.lab.results import CellName, Results
from trimtab.report import style
from trimtab.report.style import F64
from trimtab.telemetry.names import KNOWN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.2
FLOOR = 1e-6  # of logarithmic axes: on-policy, KL is 0
POINTS = 600  # a curve
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

    def title(self, measure: str) -> str:
        return self.measures[measure].label or measure


def draw(figure: spec.Figure, material: Material) -> Figure | None:
    """The drawn figure; None where no run has what it shows."""
    if isinstance(figure, spec.Curves):
        return _curves(figure, material)
    if isinstance(figure, spec.Sweep):
        return _sweep(figure, material)
    return _bars(figure, material) if isinstance(figure, spec.Bars) else _heat(figure, material)


def _head(drawn: Figure, figure: spec.Figure, note: str = "") -> None:
    """Title and note, in the margin that ``canvas`` left at the top."""
    width, height = drawn.get_size_inches()
    x = style.LEFT / width
    drawn.text(x, 1 - 0.3 / height, figure.title, fontsize=12, fontweight="bold", color=style.INK)
    text = " ".join(part for part in (figure.note, note) if part)
    drawn.text(x, 1 - 0.5 / height, _wrapped(text, int((width - style.LEFT) / 0.066)), fontsize=8, color=style.GRAY, va="top")


def _wrapped(text: str, letters: int) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, letters))


def _top(figure: spec.Figure, note: str = "", width: float = WIDTH) -> float:
    """Inches that title and note take."""
    lines = _wrapped(" ".join((figure.note, note)).strip(), int((width - style.LEFT) / 0.066)).count("\n") + 1
    return 0.62 + 0.15 * lines


# ------------------------------------------------------------------------------------------------------------------ curves
def _curves(figure: spec.Curves, m: Material) -> Figure | None:
    cells = m.chosen(figure)
    shown = [(c, label, _aligned(figure, c, m)) for c, label in zip(cells, m.labels(cells), strict=True)]
    shown = [(c, label, runs) for c, label, runs in shown if runs]
    if not shown:
        return None
    seeds = sorted({len(runs) for _, _, runs in shown})
    several = f"{'–'.join(map(str, seeds))} seeds: {'median' if figure.align else 'mean'} and range." if seeds[-1] > 1 else "One seed."
    note = f"{several} Means of {figure.smooth} batches." if figure.smooth > 1 else several
    n, top = len(figure.panels), _top(figure, note) + 0.3
    right = 0.3 + CHARACTER * max(len(label) + 6 for _, label, _ in shown)
    drawn, axes = style.canvas(n, width=WIDTH, height=top + 0.4 + 1.75 * n, right=right, top=top, hspace=0.5)
    for ax, panel in zip(axes, figure.panels, strict=True):
        _panel(ax, panel, figure, shown, m.looks(cells))
    batches = "batch" if figure.align is None else f"batches from the {m.title(figure.align)}"
    axes[-1].set_xlabel("seconds of training" if figure.over == "seconds" else batches)
    style.whole_ticks(axes[-1])
    _head(drawn, figure, note)
    return drawn


_Placed = tuple[CellRun, int]  # a run, and the place of its batch 0 on the axis


def _aligned(figure: spec.Curves, cell: CellName, m: Material) -> list[_Placed]:
    if figure.align is None:
        return [(run, 0) for run in m.runs[cell.name]]
    moment = m.measures[figure.align]
    assert isinstance(moment, Crosses | Alarm)
    found = [(run, moment.of(run)) for run in m.runs[cell.name]]
    return [(run, -int(batch)) for run, batch in found if np.isfinite(batch)]


def _panel(
    ax: Axes, panel: spec.Panel, figure: spec.Curves, shown: Sequence[tuple[CellName, str, list[_Placed]]], looks: Mapping[str, Look]
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
        middle = np.nanmedian(y, axis=0) if panel.log or figure.align else np.nanmean(y, axis=0)
        color = looks[cell.name].color
        if len(placed) > 1:
            ax.fill_between(x, np.nanmin(y, axis=0), np.nanmax(y, axis=0), color=color, alpha=0.16, lw=0)
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
        ax.axvline(0, color=style.GRAY, lw=0.8, ls=":")
    title = panel.title or panel.metric
    ax.set_title(title, loc="left", fontsize=9.5, fontweight="bold", color=style.INK, pad=15)
    meaning = panel.note or (KNOWN[panel.metric].meaning if panel.metric in KNOWN else "")
    ax.annotate(meaning, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", fontsize=8, color=style.GRAY)
    style.label_ends(ax, ends)


def _over_batches(panel: spec.Panel, figure: spec.Curves, placed: Sequence[_Placed]) -> tuple[F64, F64]:
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


def _over_seconds(panel: spec.Panel, figure: spec.Curves, placed: Sequence[_Placed]) -> tuple[F64, F64]:
    """Seconds of training, and one row a run: the last known trailing mean, NaN outside of the run."""
    ends = [(seconds(run), _smoothed(panel, figure, run)) for run, _ in placed]
    x = np.linspace(0.0, max(float(t[-1]) for t, _ in ends), POINTS)
    out = np.full((len(ends), POINTS), np.nan)
    for row, (t, y) in zip(out, ends, strict=True):
        last = np.searchsorted(t, x, side="right") - 1
        inside = (last >= 0) & (x <= t[-1] + (t[-1] / max(1, len(t))))
        row[inside] = y[last[inside]]
    return x, out


def _smoothed(panel: spec.Panel, figure: spec.Curves, run: CellRun) -> F64:
    """Trailing means, of logarithms where the axis is logarithmic."""
    y = run.column(panel.metric)
    z = _smooth(np.log(np.maximum(y, FLOOR)) if panel.log else y, figure.smooth)
    return np.exp(z) if panel.log else z


def _smooth(y: F64, window: int) -> F64:
    """Mean of the known among the last ``window`` entries; of fewer at the start, so that curves begin where runs do."""
    known = np.isfinite(y)
    totals, counts = (np.concatenate([[0.0], np.cumsum(x)]) for x in (np.where(known, y, 0.0), known))
    ends = np.arange(1, len(y) + 1)
    begins = np.maximum(0, ends - window)
    n = counts[ends] - counts[begins]
    return np.divide(totals[ends] - totals[begins], n, out=np.full(len(y), np.nan), where=n > 0)


# ------------------------------------------------------------------------------------------------------------------ sweep
def _sweep(figure: spec.Sweep, m: Material) -> Figure | None:
    cells = [c for c in m.chosen(figure) if figure.axis in c.at]
    values = list(dict.fromkeys(c.at[figure.axis] for c in cells))
    lines: dict[str, list[CellName]] = {}
    for c, label in zip(cells, _without(m, cells, figure.axis), strict=True):
        if m.results.by_seed(c.name, figure.measure):
            lines.setdefault(label, []).append(c)
    if not lines:
        return None
    note = "Dots are seeds, lines their means."
    top = _top(figure, note) + 0.25
    right = 0.3 + CHARACTER * max(len(label) + 6 for label in lines)
    drawn, (ax,) = style.canvas(1, width=WIDTH, height=top + 3.4, right=right, top=top)
    ends = []
    for i, (label, members) in enumerate(lines.items()):
        look, shift = m.of_arm(members[0].arm), (i - (len(lines) - 1) / 2) * min(0.06, 0.5 / len(lines))
        seeds = [list(m.results.by_seed(c.name, figure.measure).values()) for c in members]
        x = np.array([values.index(c.at[figure.axis]) for c in members]) + shift
        means = [float(np.mean(s)) for s in seeds]
        color = look.color
        ax.plot(x, means, color=color, ls=look.dashes, lw=1.6)
        ax.vlines(x, [min(s) for s in seeds], [max(s) for s in seeds], color=color, alpha=0.35, lw=1)
        for at, s in zip(x, seeds, strict=True):
            ax.plot(np.full(len(s), at), s, "o", color=color, ms=3, alpha=0.7, mew=0)
        if members[-1].at[figure.axis] == values[-1]:
            ends.append((means[-1], f"{label} {style.short(means[-1])}", color))
        else:  # a line that does not reach the right edge is named where it ends
            ax.annotate(label, (x[-1], means[-1]), (6, 4), textcoords="offset points", color=color, fontsize=7.5)
    ax.set_xlim(-0.3, len(values) - 0.7 if len(values) > 1 else 0.3)
    ax.set_xticks(range(len(values)), [str(v) for v in values])
    _scale(ax, figure.low, figure.high)
    ax.set_xlabel(m.axes[figure.axis])
    _axis_title(ax, m.title(figure.measure))
    _head(drawn, figure, note)
    style.label_ends(ax, ends)
    return drawn


def _without(m: Material, cells: Sequence[CellName], axis: str) -> list[str]:
    """Labels by everything but the axis."""
    bare = [CellName(c.arm, {a: v for a, v in c.at.items() if a != axis}, c.label) for c in cells]
    labels = m.labels(bare)
    return [label or c.label for label, c in zip(labels, cells, strict=True)]


def _scale(ax: Axes, low: float | None, high: float | None) -> None:
    bottom, top = ax.get_ylim()
    ax.set_ylim(min(0.0, bottom) if low is None else low, top if high is None else high)


def _axis_title(ax: Axes, title: str) -> None:
    ax.set_title(title, loc="left", fontsize=8.5, color=style.INK, pad=6)


# ------------------------------------------------------------------------------------------------------------------ bars
def _bars(figure: spec.Bars, m: Material) -> Figure | None:
    cells = [c for c in m.chosen(figure) if m.results.by_seed(c.name, figure.measure)]
    if not cells:
        return None
    blocks: dict[str, list[CellName]] = {}
    for c in cells:
        blocks.setdefault(f"{m.axes[figure.by]} {c.at[figure.by]}" if figure.by else "", []).append(c)
    labels = {c.name: label for c, label in zip(cells, _without(m, cells, figure.by) if figure.by else m.labels(cells), strict=True)}
    note = "Bars are means, dots seeds."
    top, left = _top(figure, note) + 0.1, 0.25 + CHARACTER * max(len(label) for label in labels.values())
    lines = len(cells) + (1.2 * len(blocks) if figure.by else 0)
    height = top + 0.4 + 0.25 * lines
    drawn, (ax,) = style.canvas(1, width=WIDTH, height=height, right=0.6, top=top)
    drawn.subplots_adjust(left=left / WIDTH)
    y, ticks = 0.0, []
    for title, members in blocks.items():
        if title:
            ax.annotate(title, (0, y), (-6, 0), xycoords=("axes fraction", "data"), textcoords="offset points", ha="right", va="center",
                        fontsize=8, fontweight="bold", color=style.INK)  # fmt: skip
            y += 1
        for c in members:
            values = list(m.results.by_seed(c.name, figure.measure).values())
            mean, color = float(np.mean(values)), m.of_arm(c.arm).color
            ax.barh(y, mean, height=0.62, color=color, alpha=0.3, lw=0)
            ax.plot(values, np.full(len(values), y), "o", color=color, ms=3.2, alpha=0.8, mew=0)
            ax.annotate(style.short(mean), (1, y), (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
                        fontsize=7.5, color=color)  # fmt: skip
            ticks.append((y, labels[c.name]))
            y += 1
        y += 0.2
    ax.set_ylim(y - 0.5, -0.7)
    ax.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
    ax.grid(axis="y", visible=False)
    left_end, right_end = ax.get_xlim()
    ax.set_xlim(min(0.0, left_end) if figure.low is None else figure.low, right_end if figure.high is None else figure.high)
    ax.set_xlabel(m.title(figure.measure))
    _head(drawn, figure, note)
    return drawn


# ------------------------------------------------------------------------------------------------------------------ heat
def _heat(figure: spec.Heat, m: Material) -> Figure | None:
    from matplotlib.colors import LinearSegmentedColormap

    cells = [c for c in m.chosen(figure) if m.results.by_seed(c.name, figure.measure)]
    if not cells:
        return None

    def of(c: CellName, axis: str) -> str:
        return c.label if axis == "arm" else str(c.at[axis])

    tables = list(dict.fromkeys(of(c, figure.by) for c in cells)) if figure.by else [""]
    rows, columns = (list(dict.fromkeys(of(c, axis) for c in cells)) for axis in (figure.rows, figure.columns))
    note = f"{m.title(figure.measure)}, mean over seeds."
    top, left = _top(figure, note) + 0.35, 0.35 + CHARACTER * max(len(r) for r in rows)
    height = top + 0.45 + 0.36 * len(rows)
    drawn, _ = style.canvas(1, width=WIDTH, height=height, top=top)
    drawn.clear()
    axes = drawn.subplots(1, len(tables), squeeze=False, sharey=True)[0]
    drawn.subplots_adjust(left / WIDTH, 0.42 / height, 0.985, 1 - top / height, wspace=0.06)
    means = {c.name: float(np.mean(list(m.results.by_seed(c.name, figure.measure).values()))) for c in cells}
    low, high = min(means.values()), max(means.values())
    colors = LinearSegmentedColormap.from_list("blue", ["#ffffff", style.BLUE])
    for ax, table in zip(axes, tables, strict=True):
        grid = np.full((len(rows), len(columns)), np.nan)
        for c in cells:
            if not figure.by or of(c, figure.by) == table:
                grid[rows.index(of(c, figure.rows)), columns.index(of(c, figure.columns))] = means[c.name]
        ax.pcolormesh(
            grid, cmap=colors, vmin=low - 0.15 * (high - low or 1), vmax=high + 0.3 * (high - low or 1), edgecolor="white", lw=1.5
        )
        for (i, j), value in np.ndenumerate(grid):
            if np.isfinite(value):
                ax.text(j + 0.5, i + 0.5, style.short(value), ha="center", va="center", fontsize=8, color=style.INK)
        ax.set_xticks(np.arange(len(columns)) + 0.5, columns)
        ax.set_yticks(np.arange(len(rows)) + 0.5, rows)
        ax.set_xlabel("" if figure.columns == "arm" else m.axes[figure.columns])
        ax.invert_yaxis()
        ax.grid(visible=False)
        for spine in ax.spines.values():
            spine.set_visible(False)
        ax.tick_params(length=0)
        if table:
            _axis_title(ax, f"{m.axes.get(figure.by or '', '')} {table}".strip())
    _head(drawn, figure, note)
    return drawn
