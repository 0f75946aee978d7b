"""``bench async``: how much of the asynchronous ceiling the local runtime reaches.

Three runs of the quickstart's model and task in temporary folders, for each of two engines: ``latency`` (decode steps sleep, as
if the sampler were on another device: overlap alone is tested) and ``compute`` (learner and sampler share this machine's cores).

    g, t     busy seconds of sampler and learner a batch, from a stretch at the head of the asynchronous run, both processes loaded
    ceiling  (g + t) / max(g, t)
    speedup  batches/s of the rest of that run over our own synchronous run (lockstep lag 0; the better of one and two threads)
    share    speedup / ceiling

The rows also give how well the learner's time accounting closes: ``accounting`` (shares over wall) and ``other`` (unnamed share).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from trimtab.bench.rows import BenchRow
from trimtab.config.load import load
from trimtab.runtime.run import start
from trimtab.telemetry.events import Event
from trimtab.telemetry.held_out import HeldOut
from trimtab.telemetry.metrics import BatchRecord
from trimtab.telemetry.names import TIME_SHARES
from trimtab.telemetry.reducers import Rate

WARM, CALIBRATE = 10, 40  # batches left out, then batches that measure g and t
LAG = 4
STEP_S = 0.008  # a decode step of the latency engine: about twice what the model itself needs


@dataclass(slots=True)
class RecordKeeper:
    """Keeps the batch records of a run."""

    records: list[BatchRecord]

    def batch(self, record: BatchRecord, waiting_for: str) -> None:
        self.records.append(record)

    def event(self, event: Event) -> None:
        """Events do not matter here."""

    def evaluated(self, batch: int, found: HeldOut) -> None:
        """Nor do evaluations."""


def run(rounds: int = 160) -> list[BenchRow]:
    """``rounds``: batches of each run."""
    out = []
    for kind, engine in (("latency", [f'engine={{kind = "latency", step_s = {STEP_S}, slots = 64}}']), ("compute", [])):
        sync = min(_per_batch(_records(_sync(engine, rounds), threads)) for threads in (1, 2))
        out += _rows(kind, _records(_local(engine, rounds), 1), sync)
    return out


def _common(engine: Sequence[str], batches: int) -> list[str]:
    return [f"learner.batches={batches}", "eval.prompts=8", f"store.every={10 * batches}", "store.rollouts=false", *engine]


def _sync(engine: Sequence[str], batches: int) -> list[str]:
    return ['runtime={kind = "lockstep", lag = 0}', *_common(engine, batches)]


def _local(engine: Sequence[str], batches: int) -> list[str]:
    return [f'runtime={{kind = "local", max_lag = {LAG}, workers = 1}}', *_common(engine, batches)]


def _records(overrides: list[str], threads: int) -> list[BatchRecord]:
    recorder = RecordKeeper([])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with tempfile.TemporaryDirectory() as folder:
            start(load("quickstart", overrides), Path(folder) / "run", recorder)
    finally:
        torch.set_num_threads(before)
    return recorder.records


def _per_batch(records: Sequence[BatchRecord], head: int = WARM) -> float:
    """Wall seconds a batch after the first ``head``."""
    return (records[-1].time - records[head - 1].time) / (len(records) - head)


def _share(record: BatchRecord, name: str) -> float:
    return record.value(name) or 0.0


def _rows(kind: str, records: Sequence[BatchRecord], sync: float) -> list[BenchRow]:
    head, rest = records[WARM : WARM + CALIBRATE], records[WARM + CALIBRATE :]
    t = sum(_share(r, name) for r in head for name in TIME_SHARES if name != "time/wait") / len(head)
    busy = [r.metrics["sampler/busy"] for r in head if "sampler/busy" in r.metrics]
    g = sum(b.numerator for b in busy if isinstance(b, Rate)) / len(head)
    ceiling = (g + t) / max(g, t)
    ours = _per_batch(records, WARM + CALIBRATE)
    named = sum(_share(r, name) for r in rest for name in TIME_SHARES)
    wall = rest[-1].time - records[WARM + CALIBRATE - 1].time
    other = sum(_share(r, "time/other") for r in rest)
    tag = "" if kind == "latency" else f" ({kind})"
    return [
        BenchRow(case=f"share-of-ceiling{tag}", cpu_s=0.0, wall_s=ours, ratio=sync / ours / ceiling),
        BenchRow(case=f"speedup{tag}", cpu_s=0.0, wall_s=sync, ratio=sync / ours),
        BenchRow(case=f"ceiling{tag}", cpu_s=g, wall_s=t, ratio=ceiling),
        BenchRow(case=f"accounting{tag}", cpu_s=0.0, wall_s=wall, ratio=named / wall),
        BenchRow(case=f"other{tag}", cpu_s=0.0, wall_s=other, ratio=other / wall),
    ]
