"""One measure over cells: over an axis, as bars, as a table of colors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trimtab.lab import figures as spec
from trimtab.lab.drawing.material import CHARACTER, WIDTH, Look, Material, head, top_of
from trimtab.lab.results import CellName
from trimtab.report import palette, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def sweep(figure: spec.Sweep, m: Material) -> Figure | None:
    lines: dict[str, list[CellName]] = {}  # an arm at what other axes there are
    for c in m.chosen(figure):
        lines.setdefault(_without(c, figure.axis).name, []).append(c)
    lines = {name: members for name, members in lines.items() if any(m.numbers(c, figure.measure) for c in members)}
    if not lines:
        return None
    values = m.values(figure.axis, [c for members in lines.values() for c in members])
    bare = [_without(members[0], figure.axis) for members in lines.values()]
    looks, labels = m.looks(bare), m.labels(bare)
    note = "Dots are seeds, lines their means."
    top = top_of(figure, note) + 0.25
    told = max(len(m.lacking(c, figure.measure)) for members in lines.values() for c in members)
    right = 0.3 + CHARACTER * (max(len(label) for label in labels) + 6 + told)
    drawn, (ax,) = style.canvas(1, width=WIDTH, height=top + 3.4, right=right, top=top)
    ends: list[tuple[float, str, str]] = []
    for i, (line, label) in enumerate(zip(bare, labels, strict=True)):
        shift = (i - (len(lines) - 1) / 2) * min(0.06, 0.5 / len(lines))
        cells = {c.at[figure.axis]: c for c in lines[line.name]}
        ends += _line(ax, [cells.get(v) for v in values], figure, m, looks[line.name], label, shift)
    ax.set_xlim(-0.3, len(values) - 0.7 if len(values) > 1 else 0.3)
    ax.set_xticks(range(len(values)), [str(v) for v in values])
    _scale(ax, figure.low, figure.high)
    ax.set_xlabel(m.axes[figure.axis])
    _axis_title(ax, m.title(figure.measure))
    head(drawn, figure, note)
    style.label_ends(ax, ends)
    return drawn


def _line(
    ax: Axes, cells: Sequence[CellName | None], figure: spec.Sweep, m: Material, look: Look, label: str, shift: float
) -> list[tuple[float, str, str]]:
    """Draw a line, with a gap where there is no number; its label for the right edge, where it gets there."""
    seeds = [m.numbers(c, figure.measure) if c else [] for c in cells]
    x, means = np.arange(len(cells)) + shift, np.array([np.mean(s) if s else np.nan for s in seeds])
    ax.plot(x, means, color=look.color, ls=look.dashes, lw=1.6)
    last = int(np.flatnonzero(np.isfinite(means))[-1])
    for i, s in enumerate(seeds):
        if s:
            ax.vlines(x[i], min(s), max(s), color=look.color, alpha=0.35, lw=1)
            ax.plot(np.full(len(s), x[i]), s, "o", color=look.color, ms=3, alpha=0.7, mew=0)
        cell = cells[i]
        said = [label] if i == last else []
        said += [told] if cell and (told := m.lacking(cell, figure.measure)) else []
        if i == last == len(cells) - 1:
            return [(float(means[i]), " ".join([label, style.short(means[i]), *said[1:]]), look.color)]
        if said:  # a line that does not reach the right edge is named where it ends
            at, of = ((x[i], means[i]), "data") if s else ((x[i], 0.0), ax.get_xaxis_transform())
            ax.annotate(", ".join(said), at, (6, 4), xycoords=of, textcoords="offset points", color=look.color, fontsize=7.5)
    return []


def _without(cell: CellName, axis: str | None) -> CellName:
    """The cell by everything but the axis."""
    return CellName(cell.arm, {a: v for a, v in cell.at.items() if a != axis}, cell.label)


def _scale(ax: Axes, low: float | None, high: float | None) -> None:
    bottom, top = ax.get_ylim()
    ax.set_ylim(min(0.0, bottom) if low is None else low, top if high is None else high)


def _axis_title(ax: Axes, title: str) -> None:
    ax.set_title(title, loc="left", fontsize=8.5, color=palette.INK, pad=6)


def bars(figure: spec.Bars, m: Material) -> Figure | None:
    cells = m.chosen(figure)
    if not any(m.numbers(c, figure.measure) for c in cells):
        return None
    blocks: dict[str, list[CellName]] = {}
    for c in cells:
        blocks.setdefault(f"{m.axes[figure.by]} {c.at[figure.by]}" if figure.by else "", []).append(c)
    labels = {}
    for c, label in zip(cells, m.labels([_without(c, figure.by) for c in cells]), strict=True):
        labels[c.name] = ", ".join(part for part in (label or c.label, m.lacking(c, figure.measure)) if part)
    note = "Bars are means, dots seeds."
    top, left = top_of(figure, note) + 0.1, 0.25 + CHARACTER * max(len(label) for label in labels.values())
    lines = len(cells) + (1.2 * len(blocks) if figure.by else 0)
    height = top + 0.4 + 0.25 * lines
    drawn, (ax,) = style.canvas(1, width=WIDTH, height=height, right=0.6, top=top)
    drawn.subplots_adjust(left=left / WIDTH)
    y, ticks = 0.0, []
    for title, members in blocks.items():
        if title:
            ax.annotate(title, (0, y), (-6, 0), xycoords=("axes fraction", "data"), textcoords="offset points", ha="right", va="center",
                        fontsize=8, fontweight="bold", color=palette.INK)  # fmt: skip
            y += 1
        for c in members:
            values, color = m.numbers(c, figure.measure), m.of_arm(c.arm).color
            if values:
                ax.barh(y, float(np.mean(values)), height=0.62, color=color, alpha=0.3, lw=0)
                ax.plot(values, np.full(len(values), y), "o", color=color, ms=3.2, alpha=0.8, mew=0)
            number = style.short(float(np.mean(values))) if values else "–"
            ax.annotate(number, (1, y), (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
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
    head(drawn, figure, note)
    return drawn


def heat(figure: spec.Heat, m: Material) -> Figure | None:
    from matplotlib.colors import LinearSegmentedColormap

    cells = m.chosen(figure)
    means = {c.name: float(np.mean(x)) for c in cells if (x := m.numbers(c, figure.measure))}
    if not means:
        return None

    def titles(axis: str) -> list[str]:
        return [next(c.label for c in cells if c.arm == v) if axis == "arm" else str(v) for v in m.values(axis, cells)]

    rows, columns = titles(figure.rows), titles(figure.columns)
    tables = list(zip(m.values(figure.by, cells), titles(figure.by), strict=True)) if figure.by else [(None, "")]
    note = f"{m.title(figure.measure)}, mean over seeds."
    top, left = top_of(figure, note) + 0.35, 0.35 + CHARACTER * max(len(r) for r in rows)
    height = top + 0.45 + 0.36 * len(rows)
    drawn, _ = style.canvas(1, width=WIDTH, height=height, top=top)
    drawn.clear()
    axes = drawn.subplots(1, len(tables), squeeze=False, sharey=True)[0]
    drawn.subplots_adjust(left / WIDTH, 0.42 / height, 0.985, 1 - top / height, wspace=0.06)
    low, high = min(means.values()), max(means.values())
    colors = LinearSegmentedColormap.from_list("blue", [palette.PAGE, palette.BLUE])
    for ax, (table, title) in zip(axes, tables, strict=True):
        grid = np.full((len(rows), len(columns)), np.nan)
        for c in cells:
            if not figure.by or c.value(figure.by) == table:
                i, j = (m.values(axis, cells).index(c.value(axis)) for axis in (figure.rows, figure.columns))
                grid[i, j] = means.get(c.name, np.nan)
                said = [style.short(means[c.name])] if c.name in means else []
                text = "\n".join([*said, *([told] if (told := m.lacking(c, figure.measure)) else [])])
                ax.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=8, color=palette.ON_COLOR if said else palette.INK)
        ax.pcolormesh(
            grid, cmap=colors, vmin=low - 0.15 * (high - low or 1), vmax=high + 0.6 * (high - low or 1), edgecolor="white", lw=1.5
        )
        ax.set_xticks(np.arange(len(columns)) + 0.5, columns)
        ax.set_yticks(np.arange(len(rows)) + 0.5, rows)
        ax.set_xlabel("" if figure.columns == "arm" else m.axes[figure.columns])
        ax.invert_yaxis()
        ax.grid(visible=False)
        for spine in ax.spines.values():
            spine.set_visible(False)
        ax.tick_params(length=0)
        if figure.by:
            _axis_title(ax, f"{m.axes.get(figure.by, '')} {title}".strip())
    head(drawn, figure, note)
    return drawn
