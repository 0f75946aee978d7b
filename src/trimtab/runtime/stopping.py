"""Signals that ask a run to stop: where it stops at once, where after a moment, and where not before the work in hand is whole.

SIGINT, SIGTERM, SIGUSR1 and SIGHUP (Ctrl-C; what schedulers send before they kill; a closed terminal) all mean the same: a checkpoint,
then the end. A batch that is nearly done is worth its wait, one that takes minutes is not, since a scheduler kills within seconds. So
three kinds of places, told apart by who is asked:

=============  ======================================================================================================================
``at_once``    start-up, held-out evaluations: nothing there belongs to a checkpoint, so the signal ends them where they stand
``in_hand``    generation in lockstep, the gradient of a batch: after ``GRACE_S`` they are given up; the checkpoint holds the batch as
               waiting, and the resumed run trains it
elsewhere      an optimizer step, a publication, a checkpoint: always finished
=============  ======================================================================================================================

Only the main thread is interrupted, between two of its instructions: one long call into C (the backward of one micro-batch) ends first.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import cast

GRACE_S = 5.0  # what a batch in hand is waited for: half of the 10 s in which a run shall have made its checkpoint
EVERY_S = 0.2  # how often a run is asked again, once that is over
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
OVERDUE = signal.SIGUSR2  # we send it ourselves

_SAID = b"\ntrimtab: stopping after the batch in hand, then a checkpoint; a second Ctrl-C ends without one\n"


class Interrupted(BaseException):
    """A stop was asked for, and what was going on here is given up. No ``Exception``: nobody on the way may take it for a fault."""


class Stop:
    """Has a stop been asked for? Called by loops; its two contexts mark what a stop may break off."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._asked, self._overdue, self._over = threading.Event(), threading.Event(), threading.Event()
        self._grace_s = grace_s
        self._at_once = 0
        self._may: list[Callable[[], bool]] = []

    def __call__(self) -> bool:
        return self._asked.is_set()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What is done here is broken off by a stop where it stands: raises :class:`Interrupted`."""
        self._at_once += 1
        try:
            self._raise_if_due()
            yield
        finally:
            self._at_once -= 1

    @contextmanager
    def in_hand(self, may: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """What is done here is broken off ``GRACE_S`` after a stop was asked for, as long as ``may`` says that it still can be."""
        self._may.append(may)
        try:
            yield
        finally:
            self._may.pop()

    def _raise_if_due(self) -> None:
        if self._asked.is_set() and (self._at_once or (self._overdue.is_set() and self._may and self._may[-1]())):
            raise Interrupted

    # ------------------------------------------------------------------------------------------------ signals
    def ask(self, number: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        """A signal's handler. A second SIGINT is the usual KeyboardInterrupt."""
        if self._asked.is_set():
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self._asked.set()
        with suppress(OSError):  # nobody may be there to read it; not logged, the signal may have come in the middle of another line
            os.write(2, _SAID)
        threading.Thread(target=self._remind, name="stop", daemon=True).start()
        self._raise_if_due()

    def _late(self, number: int, frame: FrameType | None) -> None:
        self._raise_if_due()

    def _remind(self) -> None:
        """Interrupt the main thread again and again once the grace is over: it may stand where it cannot be broken off."""
        main = threading.main_thread().ident
        assert main is not None
        self._over.wait(self._grace_s)
        self._overdue.set()
        while not self._over.is_set():
            signal.pthread_kill(main, OVERDUE)
            self._over.wait(EVERY_S)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Ask on every one of the signals while this lasts; what handled them before does so again afterwards."""
        before: dict[signal.Signals, object] = {}
        if threading.current_thread() is threading.main_thread():
            before = {s: signal.signal(s, self.ask) for s in ASKING}
            before[OVERDUE] = signal.signal(OVERDUE, self._late)
        try:
            yield
        finally:
            self._over.set()
            for s, handler in before.items():
                signal.signal(s, cast(signal.Handlers, handler))
