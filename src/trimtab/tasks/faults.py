"""What goes wrong in a scorer, told once for each kind of fault, then at every tenfold count: a log that shows why, and stays short."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from types import TracebackType

from trimtab.records import Outcome
from trimtab.tasks.protocol import Verdict

log = logging.getLogger(__name__)

DETAIL = 500  # characters of an error that are kept
_TRACE = 4000  # of a traceback: its end, where the error is
_KINDS = 200  # kinds of fault told apart; more are one
_OURS = ("trimtab/tasks/", "trimtab\\tasks\\")


def describe(error: BaseException) -> str:
    """``ValueError: why``, also of an error that cannot say why."""
    try:
        why = str(error)
    except Exception as other:  # noqa: BLE001 - somebody else's __str__; its failure is no failure of ours
        why = f"(its message cannot be had: {type(other).__name__})"
    return f"{type(error).__name__}: {why}"[:DETAIL]


def trace_of(error: BaseException) -> str:
    """The traceback from where it left our files; "" where it never did."""
    frames: TracebackType | None = error.__traceback__
    while frames is not None and any(ours in frames.tb_frame.f_code.co_filename for ours in _OURS):
        frames = frames.tb_next
    if frames is None:
        return ""
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except Exception as other:  # noqa: BLE001 - somebody else's __str__, or no memory left: the detail still names the error
        return f"(its traceback cannot be had: {type(other).__name__})"
    return text.rstrip() if len(text) <= _TRACE else f"...{text[-_TRACE:].rstrip()}"


class FaultLog:
    """Faults of one scorer."""

    def __init__(self, scorer: str) -> None:
        self._scorer = scorer
        self._seen: Counter[str] = Counter()

    def note(self, verdict: Verdict) -> None:
        """A response got no verdict. Logged where its kind is new, or has been seen 10, 100, 1000 ... times."""
        kind = _kind(verdict)
        if kind not in self._seen and len(self._seen) >= _KINDS:
            kind = "more kinds of fault"
        self._seen[kind] += 1
        n = self._seen[kind]
        said = f"scorer {self._scorer}: {verdict.outcome.value}: {verdict.detail}"
        if n == 1:
            log.warning("%s", said, extra={"trace": verdict.trace} if verdict.trace else None)
        elif n >= 10 and n == 10 ** (len(str(n)) - 1):
            log.warning("%s (%d times so far)", said, n)

    def sum_up(self) -> None:
        """How often each kind has come, where that was not said."""
        for kind, n in self._seen.most_common():
            if n > 1:
                log.info("scorer %s: %d times in all: %s", self._scorer, n, kind.splitlines()[0])


def _kind(verdict: Verdict) -> str:
    """What makes two faults the same: where they were raised, and as what; without a traceback, the words."""
    if verdict.outcome is Outcome.TIMEOUT or not verdict.trace:
        return f"{verdict.outcome.value}: {verdict.detail}"
    places = [line for line in verdict.trace.splitlines() if line.startswith('  File "')]
    return "\n".join([verdict.detail.partition(":")[0], *places])
