"""Where telemetry goes. The JSONL files are the truth: resume, report and detectors' evidence rest on them; the rest is a view.

``metrics.jsonl``   one :class:`~trimtab.telemetry.metrics.BatchRecord` a line
``events.jsonl``    one :class:`~trimtab.telemetry.events.Event` a line
``decisions.jsonl`` one ``Decision`` a line, with its ``batch``
``timeline.jsonl``  one :class:`~trimtab.telemetry.clock.Interval` a line
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from trimtab.records import Decision, Json, TrimtabError
from trimtab.telemetry.clock import Interval
from trimtab.telemetry.events import Event, Severity
from trimtab.telemetry.metrics import BatchRecord, finite
from trimtab.telemetry.options import TelemetryOptions

METRICS, EVENTS, DECISIONS, TIMELINE = "metrics.jsonl", "events.jsonl", "decisions.jsonl", "timeline.jsonl"


class Sink(Protocol):
    """Takes what a run tells about itself. ``batch`` comes last of what belongs to a batch and makes it durable."""

    def batch(self, record: BatchRecord) -> None: ...
    def event(self, event: Event) -> None: ...
    def decisions(self, batch: int, decisions: Sequence[Decision]) -> None: ...
    def timeline(self, intervals: Iterable[Interval]) -> None: ...
    def close(self) -> None: ...


class _Lines:
    """A JSONL file opened for append. Lines are collected and handed to the system whole, so that only a crash tears one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[str] = []
        try:
            self._file = path.open("ab", buffering=0)
            if path.stat().st_size:
                with path.open("rb") as file:
                    file.seek(-1, os.SEEK_END)
                    torn = file.read(1) != b"\n"
                if torn:
                    self._file.write(b"\n")
        except OSError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> TrimtabError:
        reason = error.strerror or str(error)
        return TrimtabError(f"cannot write {self.path}: {reason}; make room or access for the run folder, then resume the run")

    def write(self, row: dict[str, Json]) -> None:
        self._pending.append(json.dumps(row, allow_nan=False, separators=(",", ":")))

    def flush(self) -> None:
        if not self._pending:
            return
        data = memoryview(("\n".join(self._pending) + "\n").encode())
        self._pending.clear()
        try:
            while data:
                data = data[self._file.write(data) or 0 :]
        except OSError as error:
            raise self._refusal(error) from error

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._file.close()


class JsonlSink:
    """The four files of a run folder, flushed once a batch. What is not finite is written as null, and an event says so."""

    def __init__(self, folder: Path) -> None:
        self._metrics, self._events, self._decisions, self._timeline = (
            _Lines(folder / name) for name in (METRICS, EVENTS, DECISIONS, TIMELINE)
        )

    def batch(self, record: BatchRecord) -> None:
        lost = record.nonfinite()
        if lost:
            self.event(_null_event(record.batch, lost))
        for file in (self._events, self._decisions, self._timeline):
            file.flush()
        self._metrics.write(record.to_json())
        self._metrics.flush()

    def event(self, event: Event) -> None:
        self._events.write(event.to_json())
        self._events.flush()

    def decisions(self, batch: int, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            self._decisions.write({"batch": batch} | asdict(decision) | {"amount": finite(decision.amount)})

    def timeline(self, intervals: Iterable[Interval]) -> None:
        for interval in intervals:
            self._timeline.write(interval.to_json())

    def close(self) -> None:
        for file in (self._events, self._decisions, self._timeline, self._metrics):
            file.close()


def _null_event(batch: int, names: Sequence[str]) -> Event:
    listed = ", ".join(names)
    message = f"{listed} not finite, written as null"
    return Event(name="null_metric", severity=Severity.INFO, batch=batch, message=message, evidence={"metrics": listed})


class FanOut:
    """Several sinks as one, in order: the truth first."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)

    def batch(self, record: BatchRecord) -> None:
        for sink in self._sinks:
            sink.batch(record)

    def event(self, event: Event) -> None:
        for sink in self._sinks:
            sink.event(event)

    def decisions(self, batch: int, decisions: Sequence[Decision]) -> None:
        for sink in self._sinks:
            sink.decisions(batch, decisions)

    def timeline(self, intervals: Iterable[Interval]) -> None:
        rows = tuple(intervals)
        for sink in self._sinks:
            sink.timeline(rows)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


def open_sinks(folder: Path, options: TelemetryOptions) -> FanOut:
    """The sinks of a run: JSONL always; TensorBoard (imported here, below ``folder/tensorboard``) where the options ask for it."""
    sinks: list[Sink] = [JsonlSink(folder)]
    if options.tensorboard:
        from trimtab.telemetry.tensorboard import TensorBoardSink

        sinks.append(TensorBoardSink(folder / "tensorboard"))
    return FanOut(sinks)
