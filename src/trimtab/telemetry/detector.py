"""What all detectors share: episodes, severity, windows and state.

armed --finding--> speaking: one Event --`rearm` batches without a finding--> armed
"""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import ClassVar, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict

from trimtab.records import Json
from trimtab.telemetry.events import Event, Severity
from trimtab.telemetry.metrics import BatchRecord
from trimtab.telemetry.options import WatchOptions

Options_co = TypeVar("Options_co", bound=WatchOptions, covariant=True)


class Finding(NamedTuple):
    """What a detector sees in a batch: one sentence and its numbers."""

    message: str
    evidence: Mapping[str, float | int | str]


class _State(BaseModel):
    """A detector's part of the checkpoint; a window is its length and its values."""

    model_config = ConfigDict(extra="forbid")

    quiet: int
    windows: dict[str, tuple[int, list[float]]]
    extremes: dict[str, float]


class Detector(ABC, Generic[Options_co]):
    """A subclass has a name and says in ``examine`` what it finds in a batch, if anything."""

    name: ClassVar[str]

    def __init__(self, options: Options_co) -> None:
        self.options = options
        self._quiet = options.rearm  # batches since the last finding; armed from `rearm` on
        self._windows: dict[str, deque[float]] = {}
        self._extremes: dict[str, float] = {}

    @abstractmethod
    def examine(self, record: BatchRecord) -> Finding | None:
        """Take the batch into the state; what is wrong with it, or None."""

    def feed(self, record: BatchRecord) -> Event | None:
        """The event with which an episode begins, otherwise None."""
        finding = self.examine(record)
        if finding is None:
            self._quiet += 1
            return None
        begins = self._quiet >= self.options.rearm
        self._quiet = 0
        if not begins:
            return None
        severity = Severity.STOP if self.options.action == "stop" else Severity.WARN
        return Event(name=self.name, severity=severity, batch=record.batch, message=finding.message, evidence=finding.evidence)

    def push(self, window: str, value: float, size: int) -> float | None:
        """Append to a window of the last ``size`` values; the value that fell out of it, if one did."""
        values = self._windows.setdefault(window, deque(maxlen=size))
        gone = values[0] if len(values) == size else None
        values.append(value)
        return gone

    def mean(self, window: str, at_least: int | None = None) -> float | None:
        """Mean of a window, None until it is full, or holds ``at_least`` values."""
        values = self._windows[window]
        return statistics.fmean(values) if len(values) >= (values.maxlen or 0 if at_least is None else at_least) else None

    def total(self, window: str) -> float:
        """Sum of what a window holds, full or not."""
        return math.fsum(self._windows[window])

    def median(self, window: str, at_least: int) -> float | None:
        """Median of a window, None while it holds fewer than ``at_least`` values."""
        values = self._windows.get(window, ())
        return statistics.median(values) if len(values) >= at_least else None

    def highest(self, name: str, value: float) -> float:
        """The highest value of this name so far, this one included."""
        self._extremes[name] = max(self._extremes.get(name, value), value)
        return self._extremes[name]

    def lowest(self, name: str, value: float) -> float:
        """The lowest value of this name so far, this one included."""
        self._extremes[name] = min(self._extremes.get(name, value), value)
        return self._extremes[name]

    def state_dict(self) -> dict[str, Json]:
        windows: dict[str, Json] = {name: [values.maxlen, list(values)] for name, values in self._windows.items()}
        return {"quiet": self._quiet, "windows": windows, "extremes": dict(self._extremes)}

    def load_state_dict(self, state: Mapping[str, Json]) -> None:
        saved = _State.model_validate(state)
        self._quiet = saved.quiet
        self._windows = {name: deque(values, maxlen=size) for name, (size, values) in saved.windows.items()}
        self._extremes = dict(saved.extremes)
