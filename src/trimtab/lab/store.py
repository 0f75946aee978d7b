"""Finished runs by key, shared by all experiments: ``cells/KEY`` exists if and only if the run is finished.

A run works in ``cells/KEY.part-PID`` of the process that started it, which then throws away what no measure reads (checkpoints,
model, rollouts), adds ``cell.json`` and renames. What is left is a run folder that ``trimtab report`` understands.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Self

from trimtab import __version__
from trimtab.lab.measures import CellRun
from trimtab.lab.numerics import NUMERICS
from trimtab.lab.runners import VALUES
from trimtab.records import Json
from trimtab.report import runfiles
from trimtab.report.runfiles import Run
from trimtab.report.summary import FILE as SUMMARY
from trimtab.store.durable import sync, write_atomic
from trimtab.telemetry.sinks import EVENTS, METRICS

CELL = "cell.json"
KEPT = (CELL, SUMMARY, VALUES, METRICS, EVENTS, runfiles.EVAL, runfiles.CONFIG, "config.json")
PART, FAILED = ".part-", ".failed"


@dataclass(frozen=True, slots=True)
class Meta:
    """``cell.json``: what was run, with which code, and what it cost."""

    key: str
    commit: str
    numerics: int
    runner: str
    wall_s: float
    cpu_s: float

    @classmethod
    def read(cls, folder: Path) -> Self:
        table = json.loads((folder / CELL).read_bytes())
        return cls(**{f.name: table[f.name] for f in fields(cls)})


class Store:
    """The folder ``cells`` of a laboratory."""

    def __init__(self, root: Path) -> None:
        self.root = root / "cells"
        self.root.mkdir(parents=True, exist_ok=True)

    def folder(self, key: str) -> Path:
        return self.root / key

    def has(self, key: str) -> bool:
        return (self.folder(key) / CELL).exists()

    def begin(self, key: str) -> Path:
        """An empty folder to work in; what dead processes have left of this key goes."""
        for part in self.root.glob(f"{key}{PART}*"):
            if not _alive(int(part.name.rpartition("-")[2])):
                shutil.rmtree(part)
        part = self.root / f"{key}{PART}{os.getpid()}"
        for old in (part, self.root / f"{key}{FAILED}"):
            shutil.rmtree(old, ignore_errors=True)
        part.mkdir()
        return part

    def finish(self, part: Path, runner: str, wall_s: float, cpu_s: float) -> Meta:
        """Make a run that has ended one of the store. Where another process was faster, its run stays."""
        meta = Meta(part.name.partition(PART)[0], commit(), NUMERICS, runner, round(wall_s, 3), round(cpu_s, 3))
        for path in part.iterdir():
            if path.name not in KEPT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_atomic(part / CELL, (json.dumps(asdict(meta), indent=1) + "\n").encode())
        try:
            part.rename(self.folder(meta.key))
        except OSError:
            if not self.has(meta.key):
                raise
            shutil.rmtree(part)
        sync(self.root)
        return meta

    def abandon(self, part: Path) -> None:
        """Of a run that did not end."""
        shutil.rmtree(part, ignore_errors=True)

    def failed(self, part: Path) -> Path:
        """Where a run that broke lies now, whole; it goes when its key is begun again."""
        place = part.with_name(f"{part.name.partition(PART)[0]}{FAILED}")
        shutil.rmtree(place, ignore_errors=True)
        part.rename(place)
        return place

    def drop(self, key: str) -> None:
        """Forget a run, so that it is run again."""
        shutil.rmtree(self.folder(key), ignore_errors=True)

    def load(self, key: str, label: str) -> tuple[CellRun, Meta]:
        folder = self.folder(key)
        run = runfiles.load(folder, label)
        left: Json = json.loads((folder / VALUES).read_bytes()) if (folder / VALUES).exists() else {}
        values = {name: float(x) for name, x in left.items() if isinstance(x, int | float)} if isinstance(left, dict) else {}
        return CellRun(**{f.name: getattr(run, f.name) for f in fields(Run)}, values_left=values), Meta.read(folder)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@cache
def commit() -> str:
    """Of the source tree this package is run from, marked where it has uncommitted changes; the version where there is none."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        tracked = subprocess.run(["git", "ls-files", "--error-unmatch", __file__], cwd=here, capture_output=True, check=False)
        changed = subprocess.run(["git", "status", "--porcelain", "-uno", "--", ".."], cwd=here, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return __version__
    if tracked.returncode:  # installed below somebody else's repository
        return __version__
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")
