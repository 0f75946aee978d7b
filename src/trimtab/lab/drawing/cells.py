"""One measure over cells: over an axis, as bars, as a table of colors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trimtab.lab import figures as spec
from trimtab.lab.drawing.material import CHARACTER, WIDTH, Material, head, top_of
from trimtab.lab.results import CellName
from trimtab.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def sweep(figure: spec.Sweep, m: Material) -> Figure | None:
    cells = [c for c in m.chosen(figure) if figure.axis in c.at]
    values = list(dict.fromkeys(c.at[figure.axis] for c in cells))
    lines: dict[str, list[CellName]] = {}
    for c, label in zip(cells, _without(m, cells, figure.axis), strict=True):
        if m.results.by_seed(c.name, figure.measure):
            lines.setdefault(label, []).append(c)
    if not lines:
        return None
    note = "Dots are seeds, lines their means."
    top = top_of(figure, note) + 0.25
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
    head(drawn, figure, note)
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


def bars(figure: spec.Bars, m: Material) -> Figure | None:
    cells = [c for c in m.chosen(figure) if m.results.by_seed(c.name, figure.measure)]
    if not cells:
        return None
    blocks: dict[str, list[CellName]] = {}
    for c in cells:
        blocks.setdefault(f"{m.axes[figure.by]} {c.at[figure.by]}" if figure.by else "", []).append(c)
    labels = {c.name: label for c, label in zip(cells, _without(m, cells, figure.by) if figure.by else m.labels(cells), strict=True)}
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
    head(drawn, figure, note)
    return drawn


def heat(figure: spec.Heat, m: Material) -> Figure | None:
    from matplotlib.colors import LinearSegmentedColormap

    cells = [c for c in m.chosen(figure) if m.results.by_seed(c.name, figure.measure)]
    if not cells:
        return None

    def of(c: CellName, axis: str) -> str:
        return c.label if axis == "arm" else str(c.at[axis])

    tables = list(dict.fromkeys(of(c, figure.by) for c in cells)) if figure.by else [""]
    rows, columns = (list(dict.fromkeys(of(c, axis) for c in cells)) for axis in (figure.rows, figure.columns))
    note = f"{m.title(figure.measure)}, mean over seeds."
    top, left = top_of(figure, note) + 0.35, 0.35 + CHARACTER * max(len(r) for r in rows)
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
    head(drawn, figure, note)
    return drawn
