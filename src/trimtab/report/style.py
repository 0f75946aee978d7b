"""One look for every figure: thin lines, light grid, direct labels, colors that color-blind readers tell apart.

matplotlib is imported when the first figure is made, never by importing this module. Figures are built on ``Figure`` objects
(no pyplot, no global state) and come out as SVG text that inherits the page's font and, through CSS variables, its colors.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trimtab.report.palette import AMBER, AXIS, BLUE, GRAY, GREEN, GRID, INK, ORANGE, PINK, SKY, themed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

F64 = npt.NDArray[np.float64]

COLORS = (BLUE, ORANGE, GREEN, PINK, AMBER, SKY, INK)
WIDTH, LEFT, BOTTOM = 4.3, 0.52, 0.36  # inches of a small panel and its margins; the page scales it
LABELS = 0.98  # inches at the right for the labels at the ends of lines

RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.0,
    "svg.fonttype": "none",  # text stays text: small, searchable, in the page's font
    "svg.hashsalt": "trimtab",
    "axes.edgecolor": AXIS,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": GRAY,
    "axes.labelsize": 7.5,
    "axes.formatter.useoffset": False,
    "axes.labelpad": 2.0,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "xtick.color": AXIS,
    "ytick.color": AXIS,
    "xtick.labelcolor": GRAY,
    "ytick.labelcolor": GRAY,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 0.0,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "lines.linewidth": 1.3,
    "lines.solid_capstyle": "round",
    "path.simplify": True,
    "path.simplify_threshold": 0.3,
}


def canvas(
    rows: int = 1, width: float = WIDTH, height: float = 2.0, right: float = 0.1, top: float = 0.1, hspace: float = 0.22
) -> tuple[Figure, list[Axes]]:
    """A figure with ``rows`` axes above one another that share the x axis; margins ``right`` and ``top`` in inches.

    Margins are fixed rather than fitted, so that the axes of all panels of a page line up.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(RC):  # type: ignore[arg-type]
        figure = Figure(figsize=(width, height), dpi=72)
        figure.subplots_adjust(LEFT / width, BOTTOM / height, 1 - right / width, 1 - top / height, hspace=hspace)
        grid = figure.subplots(rows, 1, sharex=True, squeeze=False)
    return figure, [row[0] for row in grid]


def legend(figure: Figure, columns: int) -> None:
    """One line (or two) of keys above the axes, for what cannot be labeled at its end."""
    width, height = figure.get_size_inches()
    figure.legend(
        loc="upper left",
        bbox_to_anchor=((LEFT - 0.08) / width, 1 + 0.02 / height),
        ncols=columns,
        frameon=False,
        fontsize=7.5,
        handlelength=0.9,
        handleheight=0.8,
        columnspacing=1.1,
        labelcolor=GRAY,
    )


def whole_ticks(axes: Axes) -> None:
    """Batches and ages are whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))


def log_ticks(axes: Axes) -> None:
    """Plain numbers; 1-2-5 steps where the range is short, decades where it is long."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    low, high = axes.get_ylim()
    short = np.log10(high) - np.log10(low) < 2.2
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if short else (1.0,), numticks=7 if not short else 99))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())


def svg(figure: Figure, title: str) -> str:
    """The figure as an inline ``<svg>`` element, sized by the page, without links, metadata or superfluous digits."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context(RC):  # type: ignore[arg-type]
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' d="([^"]*)"', lambda d: f' d="{_short(d.group(1))}"', text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    box = re.search(r'viewBox="[^"]*"', text)
    head = f'<svg role="img" aria-label="{html.escape(title, quote=True)}" {box.group(0) if box else ""}>'
    return themed(re.sub(r"\s*\n\s*", "\n", head + text[text.index(">") + 1 :]).strip())


def _short(path: str) -> str:
    """Path data with two decimals, on one line."""
    return re.sub(r"(\.\d{2})\d+", r"\1", " ".join(path.split()))


def smooth(y: F64, window: int, log: bool = False) -> F64:
    """Trailing mean of ``window`` values (median where the axis is logarithmic); shorter at the start."""
    reduce = np.median if log else np.mean
    if len(y) <= window:
        return np.array([reduce(y[: i + 1]) for i in range(len(y))], dtype=np.float64)
    full = reduce(np.lib.stride_tricks.sliding_window_view(y, window), axis=1)
    return np.concatenate([smooth(y[: window - 1], window, log), full])


def thin(x: F64, y: F64, points: int) -> tuple[F64, F64]:
    """At most ``points`` points: the lowest and the highest of every stretch, so that no spike is lost."""
    if len(x) <= points:
        return x, y
    keep: set[int] = {0, len(x) - 1}
    for part in np.array_split(np.arange(len(x)), max(1, points // 2 - 1)):
        keep.add(int(part[np.argmin(y[part])]))
        keep.add(int(part[np.argmax(y[part])]))
    at = np.array(sorted(keep))
    return x[at], y[at]


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Text at the right edge beside each line's end ``(y, text, color)``, pushed apart where lines meet."""
    right = axes.get_xlim()[1]
    to_axes = axes.transData + axes.transAxes.inverted()
    order = sorted(ends)
    at = [float(to_axes.transform((right, y))[1]) for y, _, _ in order]
    gap = 10.5 / axes.bbox.height  # a line of text
    for _ in range(50):  # each pair that overlaps moves apart by half of what is missing, until none does
        for i in range(len(at) - 1):
            missing = max(0.0, gap - (at[i + 1] - at[i]))
            at[i] -= missing / 2
            at[i + 1] += missing / 2
        at = [min(1.0, max(0.02, y)) for y in at]
    for y, (_, text, color) in zip(at, order, strict=True):
        axes.annotate(text, (1.015, y), xycoords="axes fraction", color=color, va="center", fontsize=7.5)


def short(value: float) -> str:
    """As many digits as a label needs."""
    size = abs(value)
    if size >= 100 or value == 0.0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"
