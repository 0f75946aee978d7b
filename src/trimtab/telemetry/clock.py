"""Where the time went: exclusive accounting of one thread's wall time into named shares."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trimtab.records import Json

OTHER = "other"
_Stretch = tuple[str, float, float]  # what, start, end


def cpu_used() -> float:
    """CPU-seconds of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usages)


@dataclass(frozen=True, slots=True)
class Interval:
    """``who`` did ``what`` from ``start`` to ``end``, seconds since the run started: one line of ``timeline.jsonl``."""

    who: str
    what: str
    start: float
    end: float

    def to_json(self) -> dict[str, Json]:
        return {"who": self.who, "what": self.what, "start": round(self.start, 6), "end": round(self.end, 6)}


@dataclass(frozen=True, slots=True)
class Lap:
    """Seconds by share between two calls of :meth:`Clock.lap`; ``wall`` sums to ``elapsed``."""

    wall: dict[str, float]
    elapsed: float


class Clock:
    """Spans nest; a span's time excludes that of spans inside it, so the shares plus ``other`` sum to the elapsed wall time.

    One clock belongs to one thread. With ``keep`` the exclusive stretches are kept too, for the timeline, until :meth:`take`
    fetches them; ``other`` is what lies between them.
    """

    def __init__(self, keep: bool = False) -> None:
        self._wall: dict[str, float] = {}
        self._stack: list[str] = []
        self._stretches: list[_Stretch] | None = [] if keep else None
        self._start = self._last = time.perf_counter()
        self._lap = Lap({}, 0.0)

    def _charge(self) -> None:
        now = time.perf_counter()
        name = self._stack[-1] if self._stack else OTHER
        self._wall[name] = self._wall.get(name, 0.0) + now - self._last
        if self._stretches is not None and self._stack:
            self._stretches.append((name, self._last, now))
        self._last = now

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        self._charge()
        self._stack.append(name)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()

    def totals(self) -> dict[str, float]:
        """Wall seconds by share so far, ``other`` included; they sum to ``elapsed``."""
        self._charge()
        return dict(self._wall)

    def lap(self) -> Lap:
        """What was charged since the previous lap: the ``time/*`` of one batch."""
        self._charge()
        before, self._lap = self._lap, Lap(dict(self._wall), self._last - self._start)
        wall = {name: s - before.wall.get(name, 0.0) for name, s in self._lap.wall.items()}
        return Lap(wall, self._lap.elapsed - before.elapsed)

    def take(self, who: str, origin: float, shortest: float = 0.0005) -> list[Interval]:
        """The stretches since the last call as rows of the timeline; what is shorter than ``shortest`` seconds is no row of its own.

        Stretches of one activity with less than ``shortest`` between them are one row, so that a poll loop does not fill the
        file. ``origin`` is the run's start on ``time.perf_counter``, which all processes of one machine share on Linux.
        """
        stretches = self._stretches or []
        self._stretches = None if self._stretches is None else []
        long = [row for row in _joined(stretches, shortest) if row[2] - row[1] >= shortest]
        return [Interval(who, what, start - origin, end - origin) for what, start, end in _joined(long, shortest)]

    @property
    def elapsed(self) -> float:
        """Wall seconds up to the last charge."""
        return self._last - self._start


def _joined(stretches: list[_Stretch], gap: float) -> list[_Stretch]:
    """Neighbors of one activity that less than ``gap`` seconds part, as one stretch."""
    out: list[_Stretch] = []
    for what, start, end in stretches:
        if out and out[-1][0] == what and start - out[-1][2] < gap:
            start = out.pop()[1]
        out.append((what, start, end))
    return out
