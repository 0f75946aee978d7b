"""Where telemetry goes. The JSONL files are the truth: resume, report and detectors' evidence rest on them; the rest is a view.

``metrics.jsonl``   one :class:`~trimtab.telemetry.metrics.BatchRecord` a line
``events.jsonl``    one :class:`~trimtab.telemetry.events.Event` a line
``decisions.jsonl`` one ``Decision`` a line, with its ``batch``
``timeline.jsonl``  one :class:`~trimtab.telemetry.clock.Interval` a line
``eval.jsonl``      one :class:`~trimtab.telemetry.held_out.HeldOut` a line, with the ``batch`` it came after
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from trimtab.records import Decision, Json
from trimtab.telemetry.clock import Interval
from trimtab.telemetry.events import Event, Severity
from trimtab.telemetry.held_out import HeldOut
from trimtab.telemetry.metrics import BatchRecord, finite
from trimtab.telemetry.options import TelemetryOptions

METRICS, EVENTS, DECISIONS, TIMELINE, EVAL = "metrics.jsonl", "events.jsonl", "decisions.jsonl", "timeline.jsonl", "eval.jsonl"


class Sink(Protocol):
    """Takes what a run tells about itself. ``batch`` comes last of what belongs to a batch: a batch with a record is complete."""

    def batch(self, record: BatchRecord) -> None: ...
    def event(self, event: Event) -> None: ...
    def decisions(self, batch: int, decisions: Sequence[Decision]) -> None: ...
    def timeline(self, batch: int, intervals: Sequence[Interval]) -> None: ...
    def evaluated(self, batch: int, when: str, found: HeldOut, seconds: float) -> None: ...
    def close(self) -> None: ...


class Log(Protocol):
    """An append-only log, one JSON object a line; a record survives the process once ``append`` returns."""

    def append(self, record: Mapping[str, Json]) -> None: ...
    def close(self) -> None: ...


class JsonlSink:
    """The files of a run folder, each row with its ``batch``. What is not finite is written as null, and an event says so."""

    def __init__(self, folder: Path, open_log: Callable[[Path], Log]) -> None:
        self._metrics, self._events, self._decisions, self._timeline, self._evals = (
            open_log(folder / name) for name in (METRICS, EVENTS, DECISIONS, TIMELINE, EVAL)
        )

    def batch(self, record: BatchRecord) -> None:
        lost = record.nonfinite()
        if lost:
            self.event(_null_event(record.batch, lost))
        self._metrics.append(record.to_json())

    def event(self, event: Event) -> None:
        self._events.append(event.to_json())

    def decisions(self, batch: int, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            self._decisions.append({"batch": batch} | asdict(decision) | {"amount": finite(decision.amount)})

    def timeline(self, batch: int, intervals: Sequence[Interval]) -> None:
        for interval in intervals:
            self._timeline.append({"batch": batch} | interval.to_json())

    def evaluated(self, batch: int, when: str, found: HeldOut, seconds: float) -> None:
        self._evals.append({"batch": batch, "when": when, **found.to_json(), "seconds": seconds})

    def close(self) -> None:
        for log in (self._events, self._decisions, self._timeline, self._evals, self._metrics):
            log.close()


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

    def timeline(self, batch: int, intervals: Sequence[Interval]) -> None:
        for sink in self._sinks:
            sink.timeline(batch, intervals)

    def evaluated(self, batch: int, when: str, found: HeldOut, seconds: float) -> None:
        for sink in self._sinks:
            sink.evaluated(batch, when, found, seconds)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


def open_sinks(folder: Path, options: TelemetryOptions, open_log: Callable[[Path], Log]) -> FanOut:
    """The sinks of a run: JSONL always; TensorBoard (imported here, below ``folder/tensorboard``) where the options ask for it."""
    sinks: list[Sink] = [JsonlSink(folder, open_log)]
    if options.tensorboard:
        from trimtab.telemetry.tensorboard import TensorBoardSink

        sinks.append(TensorBoardSink(folder / "tensorboard"))
    return FanOut(sinks)
