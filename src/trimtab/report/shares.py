"""The panels that are not curves: ages, drift by age, where the learner's time went, who waited for whom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trimtab.foreign import mathtext
from trimtab.report import palette, style
from trimtab.report.panels import Panel
from trimtab.report.runfiles import Run, is_age
from trimtab.telemetry.names import TIME_SHARES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What the learner and the samplers do, and its color wherever it appears. Waiting is gray, work is colored.
ACTIVITY = {
    "wait": palette.AXIS,
    "idle": palette.AXIS,
    "pack": palette.PINK,
    "forward": palette.SKY,
    "backward": palette.BLUE,
    "norms": palette.GREEN,
    "step": palette.INK,
    "publish": palette.ORANGE,
    "swap": palette.ORANGE,
    "generate": palette.AMBER,
    "verify": palette.VIOLET,
    "eval": palette.LEAF,
    "methods": palette.BROWN,
    "start": palette.SAND,
    "stop": palette.SAND,
    "stage": palette.PEACH,
    "send": palette.MINT,
    "log": palette.MIST,
    "checkpoint": palette.SLATE,
    "other": palette.PALE,
}


def activity_color(what: str) -> str:
    """The color of an activity; gray for one without a color of its own."""
    return ACTIVITY.get(what, palette.OTHER)


def bucket(age: int) -> tuple[int, int]:
    """Bounds of the bucket of an age: 0, 1, 2, 3-4, 5-8, 9-16, ..."""
    if age <= 2:
        return age, age
    high = 1 << (age - 1).bit_length()
    return high // 2 + 1, high


def ages(runs: Sequence[Run]) -> Panel:
    """Histogram of token ages; for one run, each bar split into generation and waiting."""
    title = "How old the trained tokens were"
    caption = "All tokens of the run by age at consumption, in versions"
    histograms = [_numbered(run.summed("ages")) for run in runs]
    if not any(sum(histogram.values()) for histogram in histograms):
        return Panel(title, f"{caption}.", missing="Not recorded: no batch has a histogram of ages.")
    born = _numbered(runs[0].summed("ages_generation")) if len(runs) == 1 else {}
    figure, (ax,) = style.canvas(top=0.3 if born else 0.1)
    for r, histogram in enumerate(histograms):
        total = sum(histogram.values())
        if not total:
            continue
        age = np.arange(min(histogram), max(histogram) + 1)
        share = np.array([histogram.get(int(a), 0.0) for a in age]) / total
        if len(runs) > 1:
            ax.stairs(share, np.append(age, age[-1] + 1) - 0.5, color=style.COLORS[r % len(style.COLORS)], lw=1.3)
            continue
        # A token of age a owes its generation part of a to generation: so does its part of the bar.
        part = np.array([born.get(int(a), 0.0) for a in age]) / total / np.maximum(age, 1)
        ax.bar(age, share, width=0.8, color=palette.AMBER if born else palette.BLUE, label="waiting")
        ax.bar(age, part, width=0.8, color=palette.BLUE, label="generation")
        ax.bar(age[age == 0], share[age == 0], width=0.8, color=palette.AXIS, label="fresh")
    if born:
        caption += "; each bar is split by where the age arose"
        style.legend(figure, 3)
    ax.set_xlabel("age")
    ax.grid(axis="x", visible=False)
    style.whole_ticks(ax)
    ax.yaxis.set_major_formatter(_percent)
    return Panel(title, f"{caption}.", style.svg(figure, title))


def drift(runs: Sequence[Run]) -> Panel:
    """Mean absolute log-ratio of current over behavior policy by age."""
    title = "Drift by age"
    caption = "Mean |log ratio| of current over sampling policy per token. Where it climbs with age, staleness is what hurts."
    points = [_drift_points(run) for run in runs]
    if not any(points):
        return Panel(title, caption, missing="Not recorded: no batch compares the policies by age.")
    figure, (ax,) = style.canvas()
    for r, xy in enumerate(points):
        if xy:
            ax.plot(*zip(*xy, strict=True), color=style.COLORS[r % len(style.COLORS)], marker="o", ms=3.2, mfc="white", mew=1.1)
    ax.set_ylim(bottom=0.0)
    ax.set_xlim(left=-0.3)
    ax.set_xlabel("age")
    style.whole_ticks(ax)
    return Panel(title, caption, style.svg(figure, title))


def _drift_points(run: Run) -> list[tuple[float, float]]:
    """Token-weighted mean age and |log ratio| of each bucket of ages."""
    sums: dict[tuple[int, int], tuple[float, float, float]] = {}
    for age, row in run.by_age().items():
        if "log_ratio_abs_mean" in row:
            tokens, ages_sum, drift_sum = sums.get(bucket(age), (0.0, 0.0, 0.0))
            n = row["tokens"]
            sums[bucket(age)] = (tokens + n, ages_sum + n * age, drift_sum + n * row["log_ratio_abs_mean"])
    return [(ages_sum / tokens, drift_sum / tokens) for tokens, ages_sum, drift_sum in sums.values()]


def time_shares(runs: Sequence[Run]) -> Panel:
    """Where the learner's time went: over the batches of one run, or one bar a run for several."""
    title = "Where the learner's time went"
    caption = "Shares of wall time, exclusive: they sum to 100 %. Gray is waiting for rollouts."
    present = [name for name in TIME_SHARES if any(run.total(name)[0] > 0 for run in runs)]
    if not present:
        return Panel(title, caption, missing="Not recorded: no batch has time shares.")
    figure, (ax,) = style.canvas(top=0.12 + 0.15 * math.ceil(len(present) / 5))
    if len(runs) == 1:
        _shares_over_batches(ax, runs[0], present)
    else:
        _shares_of_runs(ax, runs, present)
    ax.grid(visible=False)
    style.legend(figure, 5)
    return Panel(title, caption, style.svg(figure, title))


def _shares_over_batches(ax: Axes, run: Run, present: Sequence[str]) -> None:
    """Stacked steps, at most 60, of equal numbers of batches."""
    columns = np.nan_to_num(np.array([run.column(name) for name in present]))
    parts = np.array_split(np.arange(columns.shape[1]), min(60, columns.shape[1]))
    sums = np.array([columns[:, part].sum(axis=1) for part in parts])
    share = sums / np.maximum(sums.sum(axis=1, keepdims=True), 1e-12)
    left = np.array([run.batches[part[0]] for part in parts])
    edges = np.append(left, run.batches[-1] + 1)
    whats = [name.removeprefix("time/") for name in present]
    # A step needs a value at its end; the last one is repeated.
    ax.stackplot(edges, np.append(share, share[-1:], axis=0).T, step="post", labels=whats, colors=[activity_color(w) for w in whats], lw=0)
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(0, 1)
    ax.set_xlabel("batch")
    style.whole_ticks(ax)
    ax.yaxis.set_major_formatter(_percent)


def _shares_of_runs(ax: Axes, runs: Sequence[Run], present: Sequence[str]) -> None:
    """One bar a run, its name above it."""
    totals = np.array([[run.total(name)[0] for name in present] for run in runs])
    share = totals / np.maximum(totals.sum(axis=1, keepdims=True), 1e-12)
    ends = share.cumsum(axis=1)
    rows = np.arange(len(runs))
    for i, name in enumerate(present):
        what = name.removeprefix("time/")
        ax.barh(rows, share[:, i], 0.5, ends[:, i] - share[:, i], color=activity_color(what), label=what)
    for r, run in enumerate(runs):
        ax.text(0.0, r - 0.3, mathtext(run.label), va="bottom", fontsize=7.5, color=style.COLORS[r % len(style.COLORS)])
    ax.set_yticks([])
    ax.set_ylim(len(runs) - 0.65, -0.75)
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(_percent)


def waits(run: Run) -> tuple[float | None, float | None]:
    """Shares of time: the learner waited for rollouts; the samplers were idle. None where not recorded."""
    spent = sum(run.total(name)[0] for name in TIME_SHARES)
    waited = run.total("time/wait")[0] / spent if spent else None
    return waited, run.mean("sampler/idle")


def _numbered(histogram: dict[str, float]) -> dict[int, float]:
    return {int(key): value for key, value in histogram.items() if is_age(key)}


def _percent(value: float, _position: float) -> str:
    return f"{value:.0%}"
