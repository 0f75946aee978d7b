"""Trimtab: asynchronous reinforcement-learning post-training that stays stable when rollouts are stale.

The public interface is what this module exports; the command line is built from it.

::

    from trimtab import Observer, load, train

    config = load("my.toml", ["learner.batches=100"])  # a file or a preset, with overrides
    summary = train(config, "runs/my")
    print(summary.status, summary.accuracy_after)

A reward function returns a number or a :class:`Verdict` (with :class:`Step` rewards of its own, if it has any). Importing this package
imports no torch; each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab.config.load import load
    from trimtab.public import resume, train
    from trimtab.records import TrimtabError
    from trimtab.report.summary import Summary
    from trimtab.runtime.session import Observer
    from trimtab.tasks.protocol import Step, Verdict

__version__ = "0.1.0"
__all__ = ["Observer", "Step", "Summary", "TrimtabError", "Verdict", "load", "resume", "train"]

_HOMES = {
    "Observer": "trimtab.runtime.session",
    "Step": "trimtab.tasks.protocol",
    "Summary": "trimtab.report.summary",
    "TrimtabError": "trimtab.records",
    "Verdict": "trimtab.tasks.protocol",
    "load": "trimtab.config.load",
    "resume": "trimtab.public",
    "train": "trimtab.public",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'trimtab' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
