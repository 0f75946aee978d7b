"""Long runs neither grow nor leak: resident memory and open files of the learner's process and of its worker. ``make soak``.

Before a reading the learner's allocator gives back what it keeps for itself. Otherwise the readings would follow its high-water mark,
which creeps up by some 10 MiB in the first thousand batches and then stays, although nothing more is in use.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest

from support import runs
from support.tiny import tiny_folder
from trimtab.config.run import RunConfig
from trimtab.records import Json
from trimtab.telemetry.metrics import BatchRecord

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
EVERY = 10  # batches between two readings
SLOPE_KIB = 4.0


@dataclass
class Gauge(runs.Quiet):
    """Reads memory and descriptors as the run goes on: ``readings[who][batch] = (KiB resident, open files)``."""

    readings: dict[str, dict[int, tuple[float, int]]] = field(default_factory=dict)

    def batch(self, record: BatchRecord, waiting_for: str) -> None:
        if record.batch % EVERY:
            return
        me = psutil.Process()
        _trim()
        self._read("learner", record.batch, me)
        for child in me.children():
            if "trimtab.rollout.worker" in child.cmdline():
                self._read("worker", record.batch, child)

    def _read(self, who: str, batch: int, process: psutil.Process) -> None:
        self.readings.setdefault(who, {})[batch] = (process.memory_info().rss / 1024, process.num_fds())

    def slope(self, who: str, start: int) -> float:
        """KiB a batch, least squares."""
        batches = np.array([b for b in self.readings[who] if b >= start], float)
        memory = np.array([kib for b, (kib, _) in self.readings[who].items() if b >= start])
        return float(np.polyfit(batches, memory, 1)[0])

    def table(self, title: str, start: int) -> None:
        sys.stdout.write(f"\n{title}\n")
        for who, read in self.readings.items():
            last = max(read)
            sys.stdout.write(
                f"{who:>8}: RSS {read[start][0] / 1024:.1f} MiB at batch {start}, {read[last][0] / 1024:.1f} at {last}, "
                f"slope {self.slope(who, start):+.2f} KiB a batch; open files {read[start][1]} and {read[last][1]}\n"
            )


def _trim() -> None:
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def config(folder: Path, batches: int, engine: Mapping[str, Json]) -> RunConfig:
    run = runs.config(
        folder,
        ["vcpo"],
        rollout={"max_new_tokens": 8, "prompts_per_batch": 4, "group_size": 4},
        learner={"batches": batches, "optimizer": {"lr": 1e-5}, "probe_gap": 1e9 if engine["kind"] == "scripted" else 1e-3},
        engine=engine,
        runtime={"kind": "local", "max_lag": 4, "start_deadline_s": 600.0},
        eval={"prompts": 4, "every": 100},
    )
    return run.model_copy(update={"model": str(tiny_folder(folder / "one_layer", layers=1))})


@pytest.mark.parametrize(
    ("engine", "batches", "start"),
    [({"kind": "scripted", "vocabulary": 17}, 2001, 500), ({"kind": "torch"}, 401, 100)],
    ids=["scripted", "torch"],
)
def test_memory_and_open_files_stay_level(tmp_path: Path, engine: Mapping[str, Json], batches: int, start: int) -> None:
    gauge = Gauge()
    summary = runs.train(config(tmp_path, batches, engine), tmp_path / "run", gauge)
    assert (summary.status, summary.batches) == ("done", batches)
    gauge.table(f"{engine['kind']} engine, {batches} batches, {summary.wall_s:.0f} s, {summary.cpu_s:.0f} CPU-s", start)
    for who, read in gauge.readings.items():
        assert gauge.slope(who, start) <= SLOPE_KIB, f"{who} grows"
        assert read[start][1] == read[batches - 1][1], f"{who} leaks descriptors"
    assert set(gauge.readings) == {"learner", "worker"}
