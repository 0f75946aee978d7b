"""TensorBoard event files by TensorBoard's own writer, whose thread does the writing; torch is not needed."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event as Proto
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from trimtab.records import Decision
from trimtab.telemetry.clock import Interval
from trimtab.telemetry.events import Event
from trimtab.telemetry.held_out import HeldOut
from trimtab.telemetry.metrics import BatchRecord
from trimtab.telemetry.names import described


class TensorBoardSink:
    """One scalar a metric, its meaning as description; evaluations under ``eval/``; events as counts under ``event/``.

    The step of an evaluation is the number of batches consumed before it. Decisions and timeline stay in JSONL.
    """

    def __init__(self, folder: Path) -> None:
        # A batch is one queue entry; the queue is deep enough that a slow disk does not hold up the learner.
        self._writer = EventFileWriter(str(folder), max_queue_size=4096, flush_secs=30)
        self._described: set[str] = set()
        self._counts: dict[str, int] = {}

    def _write(self, step: int, values: list[Summary.Value]) -> None:
        self._writer.add_event(Proto(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _scalar(self, name: str, value: float) -> Summary.Value:
        scalar = Summary.Value(tag=name, simple_value=value)
        told = described(name)
        if told is not None and name not in self._described:
            self._described.add(name)
            unit, meaning = told
            scalar.metadata.CopyFrom(SummaryMetadata(summary_description=f"{meaning} [{unit}]"))
        return scalar

    def batch(self, record: BatchRecord) -> None:
        values = {name: record.value(name) for name in record.metrics}
        self._write(record.batch, [self._scalar(name, x) for name, x in values.items() if x is not None])

    def event(self, event: Event) -> None:
        self._counts[event.name] = self._counts.get(event.name, 0) + 1
        self._write(event.batch, [self._scalar(f"event/{event.name}", self._counts[event.name])])

    def decisions(self, batch: int, decisions: Sequence[Decision]) -> None:
        pass

    def timeline(self, batch: int, intervals: Sequence[Interval]) -> None:
        pass

    def evaluated(self, batch: int, when: str, found: HeldOut, seconds: float) -> None:
        values = {
            "eval/score": found.score.mean,
            "eval/score_low": found.score.low,
            "eval/score_high": found.score.high,
            "eval/accuracy": found.accuracy.mean,
            "eval/accuracy_low": found.accuracy.low,
            "eval/accuracy_high": found.accuracy.high,
            "eval/errors": found.errors,
            "eval/timeouts": found.timeouts,
            "eval/truncated": found.truncated,
            "eval/length": found.length,
        }
        values |= {f"eval/pass_at_{k}": share for k, share in found.pass_at.items()}
        self._write(batch, [self._scalar(name, x) for name, x in values.items() if x is not None and math.isfinite(x)])

    def close(self) -> None:
        self._writer.close()
