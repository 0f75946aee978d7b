"""Where the time went: exclusive accounting of one thread's wall time and CPU time into named shares."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Spans nest; a span's time excludes that of spans inside it, so the shares plus ``other`` sum to the elapsed wall time."""

    def __init__(self) -> None:
        self._wall: dict[str, float] = {}
        self._stack: list[str] = []
        self._start = self._last = time.perf_counter()

    def _charge(self) -> None:
        now = time.perf_counter()
        name = self._stack[-1] if self._stack else "other"
        self._wall[name] = self._wall.get(name, 0.0) + now - self._last
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
        """Seconds by share so far, ``other`` included; they sum to ``elapsed``."""
        self._charge()
        return dict(self._wall)

    @property
    def elapsed(self) -> float:
        return self._last - self._start
