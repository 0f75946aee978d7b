"""One figure that compares runs: reward, ESS and KL over batches, made for a reader who knows nothing about them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trimtab.records import TrimtabError
from trimtab.report import style
from trimtab.report.panels import SMOOTH
from trimtab.report.runfiles import Run, load

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 600  # a curve
FLOOR = 1e-6  # of the logarithmic axis: on-policy, KL is 0
_PANELS = (
    ("reward/mean", "Reward", f"of the rollouts trained on; mean of {SMOOTH} batches, single batches faint", False),
    ("ess/ratio", "Effective sample size", "share of the batch that still counts after re-weighting; 1 is on-policy", False),
    ("kl/k3", "KL between sampler and learner", "nats a token: how stale the rollouts are for the policy that learns from them", True),
)


def comparison_figure(runs: Mapping[str, Path], out_png: Path, out_svg: Path, title: str) -> None:
    """Draw the runs (label -> folder) over each other into ``out_png`` and ``out_svg``.

    Raises:
        TrimtabError: a folder does not exist, or none of them has a batch to draw.
    """
    from matplotlib import rc_context

    loaded = [load(folder, label) for label, folder in runs.items()]
    if not any(run.metrics for run in loaded):
        raise TrimtabError(f"none of the runs {', '.join(runs)} recorded a batch: there is nothing to compare")
    figure, axes = style.canvas(3, width=7.2, height=7.0, right=1.25, top=0.95, hspace=0.42)
    for ax, (metric, name, meaning, log) in zip(axes, _PANELS, strict=True):
        if log:
            ax.set_yscale("log")
        ends = [_curve(ax, run, metric, style.COLORS[i % len(style.COLORS)], log) for i, run in enumerate(loaded)]
        ax.set_xlim(0, max(float(run.batches[-1]) for run in loaded if run.batches.size))
        if log:
            style.log_ticks(ax)
        else:
            ax.set_ylim(bottom=min(0.0, ax.dataLim.y0), top=max(1.02, ax.dataLim.y1))
        ax.set_title(name, loc="left", fontsize=9.5, fontweight="bold", color=style.INK, pad=15)
        ax.annotate(meaning, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", fontsize=8, color=style.GRAY)
        style.label_ends(ax, [end for end in ends if end is not None])
    axes[-1].set_xlabel("batch")
    style.whole_ticks(axes[-1])
    figure.text(style.LEFT / 7.2, 1 - 0.3 / 7.0, title, fontsize=12, fontweight="bold", color=style.INK)
    with rc_context(style.RC):  # type: ignore[arg-type]
        try:
            figure.savefig(out_svg, format="svg", metadata={"Date": None, "Creator": None})
            figure.savefig(out_png, format="png", dpi=180, facecolor="white")
        except OSError as error:
            raise TrimtabError(f"the figure cannot be written to {out_png}: {error.strerror or error}; give another path") from error


def _curve(ax: Axes, run: Run, metric: str, color: str, log: bool) -> tuple[float, str, str] | None:
    """Draw one run; its end ``(y, label, color)``, None where it recorded nothing."""
    x, y = run.series(metric)
    if not x.size:
        return None
    strong = style.smooth(y, SMOOTH, log)
    shown, smoothed = (np.maximum(z, FLOOR) if log else z for z in (y, strong))
    ax.plot(*style.thin(x, shown, POINTS), color=color, lw=0.5, alpha=0.3)
    ax.plot(*style.thin(x, smoothed, POINTS), color=color, lw=1.6)
    return float(smoothed[-1]), f"{run.label} {style.short(float(strong[-1]))}", color
