"""The workers of a run: started, listened to, spoken to, replaced a bounded number of times.

One thread listens, and alone starts and replaces; any thread may speak or wake it, under its owner's lock.
"""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from trimtab.config.run import LocalOptions
from trimtab.records import StoppedByRule
from trimtab.rollout.launch import WorkerProcess
from trimtab.rollout.messages import FromWorker, Pulse, ToWorker

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class CrewMember:
    """A worker's process, and what its messages have told."""

    name: str
    process: WorkerProcess
    started: float
    ready: bool = False
    held: int = -1  # the version it serves; -1 before the first
    assigned: int = 0  # groups given to it
    room: int = 0  # groups it can still be given

    def heard(self, pulse: Pulse) -> None:
        """Groups that are on their way to it are not in the room it tells of yet."""
        self.room = pulse.room - (self.assigned - pulse.assigned)


class Gone:
    """Heard of a worker whose socket has ended, or stands still."""


class Crew:
    """``options.workers`` processes, each started by ``launch(name)``. A lost one is replaced ``options.restarts`` times in all."""

    def __init__(self, options: LocalOptions, launch: Callable[[str], WorkerProcess]) -> None:
        self._options, self._launch = options, launch
        self._members: dict[str, CrewMember] = {}
        self._restarts = 0
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = os.pipe()
        for fd in (self._woken, self._waker):
            os.set_blocking(fd, False)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def __iter__(self) -> Iterator[CrewMember]:
        return iter(list(self._members.values()))

    def get(self, name: str) -> CrewMember | None:
        return self._members.get(name)

    def start(self) -> None:
        for i in range(self._options.workers):
            self._spawn(f"worker-{i}")

    def _spawn(self, name: str) -> None:
        process = self._launch(name)
        member = self._members[name] = CrewMember(name, process, time.monotonic())
        self._selector.register(process.connection, selectors.EVENT_READ, member)
        log.info("%s started as process %d", name, process.pid)

    def replace(self, member: CrewMember, why: str = "") -> None:
        """End a worker and start another under its name. Raises :class:`StoppedByRule` after ``restarts`` replacements."""
        self._selector.unregister(member.process.connection)
        del self._members[member.name]
        ended = member.process.end()
        why = why or ended
        log.warning("%s died: %s", member.name, why)
        if self._restarts >= self._options.restarts:
            raise StoppedByRule(
                f"{member.name} died ({why}) after {self._restarts} restarts (runtime.restarts); see run.log in the run folder"
            )
        self._restarts += 1
        self._spawn(member.name)

    def send(self, member: CrewMember, message: ToWorker) -> None:
        """A worker that cannot be told ends: it is found gone, and what was sent to it is lost with it."""
        try:
            member.process.send(message)
        except OSError:
            member.process.interrupt()

    def listen(self, seconds: float) -> list[tuple[CrewMember, FromWorker | Gone]]:
        """What has been said, or who is gone; waits up to ``seconds`` for it, or until woken."""
        heard: list[tuple[CrewMember, FromWorker | Gone]] = []
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                os.read(self._woken, 4096)
                continue
            member: CrewMember = key.data
            try:
                for message in member.process.messages():
                    heard.append((member, message))
            except (EOFError, OSError):
                heard.append((member, Gone()))
        return heard

    def wake(self) -> None:
        """End the wait of ``listen``."""
        with suppress(BlockingIOError):  # the pipe is full of wakes
            os.write(self._waker, b"x")

    def check_started(self, now: float) -> None:
        """Raises :class:`StoppedByRule`, naming it, where a worker takes longer than ``start_deadline_s`` to come up."""
        limit = self._options.start_deadline_s
        late = [m.name for m in self._members.values() if not m.ready and now - m.started > limit]
        if late:
            raise StoppedByRule(f"runtime.start_deadline_s = {limit:g}: {', '.join(late)} did not report ready in that time; see run.log")

    def close(self) -> None:
        """Kill the workers: they hold nothing that the run needs. No process survives this call."""
        while self._members:
            self._members.popitem()[1].process.kill()
        self._selector.close()
        os.close(self._woken)
        os.close(self._waker)
