"""What learner and samplers did, side by side, in a short window in the middle of the run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab.foreign import mathtext
from trimtab.report import palette, style
from trimtab.report.panels import Panel
from trimtab.report.runfiles import Run
from trimtab.report.shares import ACTIVITY, activity_color
from trimtab.telemetry.metrics import number

BATCHES = 6  # in the window
MOST = 3000  # stretches looked at, the longest

Stretch = tuple[str, str, float, float]  # who, what, start, end


def draw(run: Run, of: str = "") -> Panel:
    """The Gantt chart of one run, one lane a process."""
    title = f"Who did what, when: {of}" if of else "Who did what, when"
    caption = "A few batches from the middle of the run. Thin lines: a batch was done. The lanes overlap where the run is asynchronous."
    rows = _stretches(run)
    if not rows:
        return Panel(title, caption, missing="Not recorded: timeline.jsonl has no rows.", wide=True)
    start, end = _window(run, rows)
    rows = [row for row in rows if row[3] > start and row[2] < end]
    rows = sorted(sorted(rows, key=lambda row: row[2] - row[3])[:MOST], key=lambda row: row[2])
    lanes = sorted({row[0] for row in rows}, key=lambda who: (who != "learner", len(who), who))
    figure, (ax,) = style.canvas(width=13.4, height=0.75 + 0.32 * max(2, len(lanes)), top=0.3)
    whats = sorted({row[1] for row in rows}, key=lambda what: (list(ACTIVITY).index(what) if what in ACTIVITY else len(ACTIVITY), what))
    for what in whats:
        for lane, who in enumerate(lanes):
            spans = _spans([row for row in rows if row[:2] == (who, what)], start, end)
            ax.broken_barh(spans, (lane - 0.36, 0.72), facecolors=activity_color(what), label="" if lane else mathtext(what), lw=0)
    done = run.times[(run.times >= start) & (run.times <= end)]
    ax.vlines(done, -0.5, len(lanes) - 0.5, color=palette.INK, lw=0.5, alpha=0.5)
    ax.set_yticks(range(len(lanes)), [mathtext(lane) for lane in lanes])
    ax.set_ylim(len(lanes) - 0.45, -0.55)
    ax.set_xlim(start, end)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("seconds since the run started")
    style.legend(figure, len(whats))
    return Panel(title, caption, style.svg(figure, title), wide=True)


def _stretches(run: Run) -> list[Stretch]:
    rows = []
    for row in run.timeline:
        who, what, start, end = row.get("who"), row.get("what"), number(row.get("start")), number(row.get("end"))
        if isinstance(who, str) and isinstance(what, str) and start is not None and end is not None and end > start:
            rows.append((who, what, start, end))
    return rows


def _spans(rows: Sequence[Stretch], start: float, end: float) -> list[tuple[float, float]]:
    """Start and width within the window; what is closer together than a pixel is drawn as one."""
    pixel = (end - start) / 1500
    out: list[list[float]] = []
    for _, _, low, high in rows:
        low, high = max(low, start), min(high, end)
        if out and low - out[-1][1] < pixel:
            out[-1][1] = max(high, out[-1][1])
        else:
            out.append([low, high])
    return [(low, high - low) for low, high in out]


def _window(run: Run, rows: Sequence[Stretch]) -> tuple[float, float]:
    """As long as a few batches take, around the middle of the run."""
    first, last = min(row[2] for row in rows), max(row[3] for row in rows)
    times = run.times[np.isfinite(run.times)]
    steps = np.diff(times)
    length = BATCHES * float(np.median(steps[steps > 0])) if (steps > 0).any() else last - first
    middle = float(np.median(times)) if times.size else (first + last) / 2
    start = min(max(first, middle - length / 2), max(first, last - length))
    return start, min(last, start + length)
