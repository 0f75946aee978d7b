"""The small multiples that are curves over batches: what each shows, and how to draw it for one run or several.

One run: a color a curve, labeled at its end. Several runs: a color a run (the page has the legend), further curves dashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trimtab.report import style
from trimtab.report.runfiles import Run, number

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


@dataclass(frozen=True, slots=True)
class Curve:
    metric: str
    label: str
    dashed: bool = False
    raw: bool = True  # also draw the single batches, faint
    smooth: bool = True
    alone: bool = False  # left out where several runs are overlaid
    share: bool = False  # of the time of all ``time/*`` shares together


@dataclass(frozen=True, slots=True)
class Axis:
    """One pair of axes: its curves and its vertical range."""

    curves: tuple[Curve, ...]
    log: bool = False
    floor: float = 0.0  # logarithmic: what is smaller is drawn at the floor; without one, zeros are left out
    low: float | None = None
    high: float | None = None
    unit: str = ""
    marks: tuple[str, ...] = ()  # detectors whose events are marked at the top
    heldout: bool = False
    zero: bool = False  # a line at zero
    skipped: bool = False  # skipped batches are marked at the bottom


@dataclass(frozen=True, slots=True)
class Figure:
    title: str
    caption: str
    axes: tuple[Axis, ...]


LEARNING = (
    Figure(
        "Reward and held-out accuracy",
        "The number to watch. Reward is that of the rollouts trained on, so it lags; dots are held-out accuracy.",
        (Axis((Curve("reward/mean", "reward"),), heldout=True, low=0.0),),
    ),
    Figure(
        "Groups with signal",
        "Share of groups whose members differ in reward. Where it reaches 0 there is nothing left to learn from.",
        (Axis((Curve("groups/mixed", "mixed"),), low=0.0, high=1.0),),
    ),
    Figure(
        "Baseline: OPOB beside the group mean",
        "Over mixed groups. Near 0, OPOB means: imitate the successes. Above the mean: push the failures down.",
        (Axis((Curve("opob/baseline", "OPOB"), Curve("opob/group_mean", "group mean", dashed=True)), low=0.0),),
    ),
)

STALENESS = (
    Figure(
        "Effective sample size",
        "ESS of the raw sequence importance ratios over rollouts. 1: on-policy. 1/rollouts: one rollout carries the batch.",
        (
            Axis(
                (Curve("ess/ratio", "raw"), Curve("ess/ratio_truncated", "after the cut", dashed=True, raw=False)),
                low=0.0,
                high=1.0,
                marks=("ess",),
            ),
        ),
    ),
    Figure(
        "KL between sampler and learner",
        "k3 estimate per token: how far the learner has moved from the policies that sampled the batch.",
        (Axis((Curve("kl/k3", "k3"),), log=True, floor=1e-6, unit="nats", marks=("kl",)),),
    ),
    Figure(
        "Raw importance ratios",
        "Quantiles over rollouts before any cut. A heavy tail shows here before it shows in the reward.",
        (
            Axis(
                (
                    Curve("ratio/max", "max"),
                    Curve("ratio/p99", "p99", raw=False, dashed=True, alone=True),
                    Curve("ratio/p50", "median", raw=False, alone=True),
                    Curve("ratio/p01", "p01", raw=False, alone=True),
                ),
                log=True,
                floor=1e-4,
                marks=("ratio_p99",),
            ),
        ),
    ),
    Figure(
        "Age of the trained tokens",
        "In versions. Generation: arose while the group was being generated. Waiting: arose in the pool.",
        (
            Axis(
                (
                    Curve("age/mean", "mean", raw=False),
                    Curve("age/max", "max", raw=False, smooth=False, dashed=True),
                    Curve("age/generation", "generation", raw=False, alone=True),
                    Curve("age/waiting", "waiting", raw=False, alone=True),
                ),
                low=0.0,
                unit="versions",
            ),
        ),
    ),
)

STEPS = (
    Figure(
        "Gradient norm",
        "Before and after the methods of the gradient point. Single spikes are normal and a reason to clip.",
        (Axis((Curve("grad/raw_norm", "raw"), Curve("grad/norm", "used", raw=False, dashed=True)), log=True, marks=("norm_spike",)),),
    ),
    Figure(
        "Gradient cosine",
        "Between the raw gradients of consecutive batches.",
        (Axis((Curve("grad/cosine", "cosine"),), zero=True),),
    ),
    Figure(
        "Step multiplier",
        "What the step methods made of the learning rate. Ticks at the bottom: batches whose step was skipped.",
        (Axis((Curve("step/multiplier", "multiplier"),), low=0.0, high=1.0, skipped=True),),
    ),
)

RESPONSES = (
    Figure(
        "Outcomes",
        "What the verifier said about the rollouts trained on. A timeout or an error is not a wrong answer.",
        (
            Axis(
                (
                    Curve("outcome/correct", "correct", raw=False),
                    Curve("outcome/wrong", "wrong", raw=False, alone=True),
                    Curve("outcome/unparseable", "unparseable", raw=False, dashed=True),
                    Curve("outcome/timeout", "timeout", raw=False, alone=True),
                    Curve("outcome/error", "error", raw=False, alone=True),
                ),
                low=0.0,
                high=1.0,
            ),
        ),
    ),
    Figure(
        "Response length and truncation",
        "Action tokens of a rollout (above) and the share that ran into the token limit (below).",
        (
            Axis(
                (Curve("length/mean", "mean"), Curve("length/max", "longest", raw=False, dashed=True)),
                low=0.0,
                unit="tokens",
                marks=("length",),
            ),
            Axis((Curve("stop/truncated", "truncated"),), low=0.0, marks=("truncation",)),
        ),
    ),
    Figure(
        "Entropy",
        "Of the current policy, per token. It falls as the policy becomes sure; a fall without reward is an alarm.",
        (Axis((Curve("entropy/mean", "entropy"),), log=True, unit="nats", marks=("entropy",)),),
    ),
)

TIME = (
    Figure(
        "Who waits",
        "Learner: share of its time without rollouts to train on. Samplers: share of their time without work.",
        (Axis((Curve("time/wait", "learner", share=True), Curve("sampler/idle", "samplers", dashed=True)), low=0.0),),
    ),
    Figure(
        "Throughput",
        "Action tokens trained on per second of wall time.",
        (Axis((Curve("throughput/tokens_per_s", "tokens/s"),), low=0.0),),
    ),
)


def draw(figure: Figure, runs: Sequence[Run]) -> Panel:
    """The panel of a figure, or the sentence that says what was not recorded."""
    names = [curve.metric for axis in figure.axes for curve in axis.curves]
    heldout = any(axis.heldout for axis in figure.axes) and any(run.heldout()[0].size for run in runs)
    if not heldout and not any(run.series(name)[0].size for run in runs for name in names):
        return Panel(figure.title, figure.caption, missing=f"Not recorded: no batch has {' or '.join(names)}.")
    canvas, axes = style.canvas(len(figure.axes), right=style.LABELS if len(runs) == 1 else 0.1)
    last = max((float(run.batches[-1]) for run in runs if run.batches.size), default=1.0)
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
            x, y = run.heldout()
            if x.size:
                ax.plot(x, y, color=color, marker="o", ms=3.2, lw=0.8, ls=":", mfc="white", mew=1.1, zorder=4, clip_on=False)
                at = "" if x[-1] > 0.9 * last else f" at {x[-1]:.0f}"
                ends.append((float(y[-1]), f"held-out {style.short(float(y[-1]))}{at}", color))
        _marks(axis, ax, run, style.ORANGE if len(runs) == 1 else style.COLORS[r % len(style.COLORS)], r)
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
        ax.axhline(0.0, color=style.GRAY, lw=0.7)
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


def _marks(axis: Axis, ax: Axes, run: Run, color: str, row: int) -> None:
    """Events at the top, skipped batches at the bottom."""
    found = [number(event.get("batch")) for event in run.events if event.get("name") in axis.marks]
    at = [batch for batch in found if batch is not None]
    if at:
        ax.plot(at, np.full(len(at), 1.03), "v", color=color, ms=3.6, mew=0, transform=ax.get_xaxis_transform(), clip_on=False)
    if axis.skipped and not run.applied.all():
        skipped = run.batches[~run.applied]
        ax.plot(skipped, np.full(len(skipped), 0.02 + 0.05 * row), "|", color=color, ms=4.5, mew=0.6, transform=ax.get_xaxis_transform())
