"""Finished runs by key, shared by all experiments: ``cells/KEY`` exists if and only if the run is finished.

A run works in ``cells/KEY.part-PID`` of the process that started it, which holds the lock ``cells/KEY.lock`` meanwhile, then throws
away what no measure reads (checkpoints, model, rollouts), adds ``cell.json`` and renames. A run that it replaces stays until then.
What is left is a run folder that ``trimtab report`` understands.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Self, TextIO

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

FOLDER = "cells"  # in the laboratory's
CELL = "cell.json"
KEPT = (CELL, SUMMARY, VALUES, METRICS, EVENTS, runfiles.EVAL, runfiles.CONFIG, "config.json")
PART, OLD, FAILED, LOCK = ".part-", ".old-", ".failed", ".lock"


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


@dataclass(frozen=True, slots=True)
class Lock:
    """A key that this process runs: no other does. It goes with the process."""

    file: TextIO

    def release(self) -> None:
        Path(self.file.name).unlink(missing_ok=True)
        self.file.close()


class Store:
    """The folder of a laboratory that runs are in."""

    def __init__(self, root: Path) -> None:
        self.root = root / FOLDER
        self.root.mkdir(parents=True, exist_ok=True)

    def folder(self, key: str) -> Path:
        return self.root / key

    def has(self, key: str) -> bool:
        return (self.folder(key) / CELL).exists()

    def stamp(self, key: str) -> tuple[int, int] | None:
        """Tells a run from one that replaces it; None where there is none."""
        try:
            found = (self.folder(key) / CELL).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_ino, found.st_mtime_ns

    def lock(self, key: str) -> Lock | None:
        """Take a key; None where another process has it."""
        file = (self.root / f"{key}{LOCK}").open("w")
        with suppress(BlockingIOError, FileNotFoundError):  # FileNotFoundError: released, and so removed, after we opened it
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(file.name), os.fstat(file.fileno())):
                return Lock(file)
        file.close()
        return None

    def sweep(self) -> None:
        """Clear what dead processes have left: parts go, a run that was being replaced comes back."""
        for kind in (PART, OLD):
            for left in self.root.glob(f"*{kind}*"):
                key, _, pid = left.name.partition(kind)
                if not pid.isdecimal() or _alive(int(pid)):
                    continue
                if kind == OLD and not self.has(key):
                    with suppress(OSError):  # another process was faster
                        left.rename(self.folder(key))
                shutil.rmtree(left, ignore_errors=True)

    def begin(self, key: str) -> Path:
        """An empty folder to work in."""
        part = self.root / f"{key}{PART}{os.getpid()}"
        for old in (part, self.root / f"{key}{FAILED}"):
            shutil.rmtree(old, ignore_errors=True)
        part.mkdir()
        return part

    def finish(self, part: Path, runner: str, wall_s: float, cpu_s: float) -> Meta:
        """Make a run that has ended one of the store, in place of what is there."""
        meta = Meta(part.name.partition(PART)[0], commit(), NUMERICS, runner, round(wall_s, 3), round(cpu_s, 3))
        for path in part.iterdir():
            if path.name not in KEPT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_atomic(part / CELL, (json.dumps(asdict(meta), indent=1) + "\n").encode())
        old = self.root / f"{meta.key}{OLD}{os.getpid()}"
        shutil.rmtree(old, ignore_errors=True)
        with suppress(FileNotFoundError):
            self.folder(meta.key).rename(old)
        part.rename(self.folder(meta.key))
        sync(self.root)
        shutil.rmtree(old, ignore_errors=True)
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
