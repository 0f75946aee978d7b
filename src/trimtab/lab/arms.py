"""Experiments of many runs: cells (an arm, a seed) of a preset, each a run folder and a process of one thread of its own.

    found = run(cells, root, measure, jobs=2)

Every cell that ends is a line of ``root/results.jsonl`` at once, so that an experiment that was interrupted goes on where it was:
cells whose line is there (same name, same overrides) are not run again. A run that a rule stopped is a result; one that broke is not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np

from trimtab.records import Json, StoppedByRule, TrimtabError
from trimtab.report.runfiles import Run, load
from trimtab.store.jsonl import JsonLines, read_jsonl, truncate_to

RESULTS = "results.jsonl"
LEAN = ("store.every=1000000", "store.rollouts=false")  # checkpoints only at both ends

Measure = Callable[[Run], Mapping[str, float]]
Key = tuple[str, tuple[str, ...]]  # a cell's name, and everything it overrides


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: its arm, its seed, and the arm's overrides of the preset."""

    arm: str
    seed: int
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the run and its folder."""
        return f"{self.arm}-seed{self.seed}"


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a cell: NaN where the run did not get to a number."""

    arm: str
    seed: int
    overrides: tuple[str, ...]
    status: str
    values: Mapping[str, float]


def run(
    cells: Sequence[Cell],
    root: Path,
    measure: Measure,
    *,
    preset: str = "quickstart",
    jobs: int = 1,
    extra: Sequence[str] = LEAN,
    tell: Callable[[Found], None] = lambda found: None,
) -> list[Found]:
    """Run what has no result yet, ``jobs`` at a time and in order of ``cells``; the results of all cells in that order.

    ``extra`` overrides apply to every cell; ``tell`` hears of each as it ends.

    Raises:
        TrimtabError: a run broke, after the others have ended; its output is in ``root``.
    """
    root.mkdir(parents=True, exist_ok=True)
    truncate_to(root / RESULTS, sys.maxsize, root / "orphans")  # a line torn by a crash
    wanted = {(c.name, (*c.overrides, *extra)): c for c in cells}
    done = {key: found for key, found in _read(root / RESULTS).items() if key in wanted}
    broken: list[str] = []
    with closing(JsonLines(root / RESULTS)) as results:

        def ended(key: Key, code: int) -> None:
            cell = wanted[key]
            if code not in (0, StoppedByRule.exit_code):
                broken.append(f"{cell.name} ended with exit code {code}, see {_output(root, cell)}")
                return
            loaded = load(root / cell.name, cell.name)
            values = {name: float(value) for name, value in measure(loaded).items()}
            found = Found(cell.arm, cell.seed, key[1], loaded.summary.status if loaded.summary else "failed", values)
            finite: dict[str, Json] = {name: value if np.isfinite(value) else None for name, value in values.items()}
            results.append({**asdict(found), "overrides": list(key[1]), "values": finite})
            done[key] = found
            tell(found)

        _run([(key, _arguments(cell, root, preset, key[1])) for key, cell in wanted.items() if key not in done], root, jobs, ended)
    if broken:
        raise TrimtabError("; ".join(broken))
    return [done[key] for key in wanted]


def _arguments(cell: Cell, root: Path, preset: str, overrides: Sequence[str]) -> list[str]:
    """Of ``trimtab``."""
    return ["train", preset, "--runs", str(root), f"name={cell.name}", f"seed={cell.seed}", *overrides]


def _output(root: Path, cell: Cell) -> Path:
    return root / f"{cell.name}.txt"


def _run(waiting: list[tuple[Key, list[str]]], root: Path, jobs: int, ended: Callable[[Key, int], None]) -> None:
    """All of them, ``jobs`` processes at a time; none outlives us, however we end."""
    running: dict[Key, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                key, arguments = waiting.pop(0)
                if (root / key[0]).exists():  # of an experiment that was interrupted
                    shutil.rmtree(root / key[0])
                with (root / f"{key[0]}.txt").open("wb") as output:
                    running[key] = _start(arguments, output)
            for key in [k for k, (process, _) in running.items() if process.poll() is not None]:
                process, lifeline = running.pop(key)
                lifeline.close()
                ended(key, process.returncode)
            time.sleep(0.1)
    finally:
        for process, lifeline in running.values():
            lifeline.close()
            process.wait()


def _start(arguments: list[str], output: IO[bytes]) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """``trimtab`` in a process of its own, and the lifeline it dies with."""
    watched, held = os.pipe()
    command = [sys.executable, "-m", "trimtab.tasks.lifeline", str(watched), "trimtab.cli.main", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment, pass_fds=[watched]), os.fdopen(held, "wb")
    finally:
        os.close(watched)


def _read(path: Path) -> dict[Key, Found]:
    out: dict[Key, Found] = {}
    for record in read_jsonl(path):
        overrides, values = record["overrides"], record["values"]
        assert isinstance(overrides, list)
        assert isinstance(values, dict)
        found = Found(
            arm=str(record["arm"]),
            seed=int(str(record["seed"])),
            overrides=tuple(map(str, overrides)),
            status=str(record["status"]),
            values={name: _number(value) for name, value in values.items()},
        )
        out[f"{found.arm}-seed{found.seed}", found.overrides] = found
    return out


def _number(value: Json) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


# ------------------------------------------------------------------------------------------------------------- what to measure


def held_out(run: Run) -> float:
    """Accuracy on the held-out prompts after the run."""
    after = None if run.summary is None else run.summary.accuracy_after
    return float("nan") if after is None else after


def last(run: Run, name: str, batches: int = 20) -> float:
    """Mean of a metric over the last batches."""
    return _mean(run.column(name)[-batches:])


def mean(run: Run, name: str) -> float:
    """Mean of a metric over the run's batches."""
    return _mean(run.column(name))


def lowest(run: Run, name: str) -> float:
    """Smallest value of a metric in any batch."""
    x = run.column(name)
    return float(np.nanmin(x)) if np.isfinite(x).any() else float("nan")


def windows(run: Run, name: str, batches: int) -> np.ndarray:
    """Means of a metric over every ``batches`` consecutive batches: entry i begins with batch i."""
    x = run.column(name)
    return np.convolve(x, np.full(batches, 1 / batches), "valid") if len(x) >= batches else np.zeros(0)


def _mean(x: np.ndarray) -> float:
    return float(np.nanmean(x)) if np.isfinite(x).any() else float("nan")
