"""``trimtab.train`` and ``trimtab.resume``: a run from Python, what the commands of these names do apart from the display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trimtab.config.run import RunConfig
from trimtab.report.summary import Summary
from trimtab.runtime import run
from trimtab.runtime.session import Nobody, Observer


def train(config: RunConfig, folder: str | Path, *, observer: Observer | None = None, report: bool = True) -> Summary:
    """Run ``config`` in a folder that holds no run yet; what came out is also its ``summary.json``.

    Args:
        config: from :func:`trimtab.load`.
        folder: made where it is not there.
        observer: told of every batch, event and evaluation, in this thread; a subclass of :class:`trimtab.Observer`.
        report: draw ``report.html`` at the end.

    Raises:
        TrimtabError: something the caller can act on, in one sentence. Where a rule stopped the run it is a ``StoppedByRule``; the run is
            checkpointed and :func:`resume` goes on with it.
    """
    return run.start(config, Path(folder), observer or Nobody(), report=report)


def resume(folder: str | Path, overrides: Sequence[str] = (), *, observer: Observer | None = None, report: bool = True) -> Summary:
    """Go on with a run from its newest checkpoint that verifies; ``overrides`` such as ``learner.batches=800`` may make it longer.

    Raises:
        TrimtabError: there is no run, no checkpoint that verifies, or an override would make it another experiment.
    """
    return run.resume(Path(folder), overrides, observer or Nobody(), report=report)
