"""One run, one folder: where everything lies, and who may write there.

Readers (``show``, ``report``, ``replay``) just use the paths. A writer enters the folder, which takes an exclusive lock that
the kernel releases when the process dies, however it dies: there are no stale locks.
"""

import fcntl
import json
import os
import shutil
import socket
import weakref
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from trimtab.foreign import parse_json
from trimtab.records import Json, TrimtabError
from trimtab.store.durable import TEMP, disk, disk_error, sync

EVALUATION = "evaluation.json"  # beside the model in best/


class RunFolder:
    """Paths of a run; a context manager that holds its lock.

    ::

        config.toml  config.json                     the resolved configuration
        summary.json                                 what came out
        metrics, events, decisions, timeline .jsonl  a record a line, each with its ``batch``
        eval.jsonl                                   evaluations
        rollouts/                                    every rollout, parquet
        checkpoints/NNNNNN/                          the state after NNNNNN consumed batches
        model/                                       the result, for transformers
        best/                                        the best model of the evaluations during the run, and its evaluation.json
        report.html
        orphans/                                     records of batches that a resume took back
        lock                                         pid and host of the writer
    """

    def __init__(self, path: Path, *, fresh: bool) -> None:
        self.path = path
        self.config_toml = path / "config.toml"
        self.config_json = path / "config.json"
        self.summary = path / "summary.json"
        self.metrics = path / "metrics.jsonl"
        self.events = path / "events.jsonl"
        self.decisions = path / "decisions.jsonl"
        self.timeline = path / "timeline.jsonl"
        self.eval = path / "eval.jsonl"
        self.rollouts = path / "rollouts"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.best = path / "best"
        self.report = path / "report.html"
        self.orphans = path / "orphans"
        self.lock = path / "lock"
        self._fresh = fresh
        self._fd: int | None = None

    @classmethod
    def create(cls, path: Path) -> Self:
        """A folder for a new run.

        Raises:
            TrimtabError: it already holds one, or cannot be created.
        """
        folder = cls(path, fresh=True)
        folder._check()
        with disk(path, "nothing was begun", what="created", then=" or choose another place"):
            for part in (path, folder.rollouts, folder.checkpoints):
                part.mkdir(parents=True, exist_ok=True)
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """The folder of a run that was started before.

        Raises:
            TrimtabError: there is none.
        """
        folder = cls(path, fresh=False)
        folder._check()
        return folder

    @staticmethod
    def taken(path: Path) -> bool:
        """Does the folder hold a run, or is one just beginning there?"""
        with _looking(path):
            if (path / "config.json").exists():
                return True
        try:
            fd = os.open(path / "lock", os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    @property
    def logs(self) -> tuple[Path, ...]:
        """The append-only logs, which a resume cuts back to its checkpoint."""
        return (self.metrics, self.events, self.decisions, self.timeline, self.eval)

    def evaluation_of_best(self) -> dict[str, Json] | None:
        """What ``best/`` was found to be, with the ``batch`` it came after; None where there is none, or it is not on record."""
        try:
            row = parse_json((self.best / EVALUATION).read_bytes())
        except (OSError, ValueError):  # a folder of before, or one that is half gone: it gives way to the next evaluation
            return None
        return row if isinstance(row, dict) and isinstance(row.get("batch"), int) else None

    def sync_logs(self) -> None:
        """Let the logs survive power loss up to here; called before a checkpoint is saved.

        Raises:
            TrimtabError: the disk is full.
        """
        for path in self.logs:
            try:
                sync(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise disk_error(path, error) from error

    @property
    def locked(self) -> bool:
        """True while this object holds the lock."""
        return self._fd is not None

    def __enter__(self) -> Self:
        """Take the lock and clear what a dead writer left half-made.

        Raises:
            TrimtabError: another process writes here.
        """
        with disk(self.lock):
            fd = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(fd, 0)
                os.pwrite(fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
            except BlockingIOError:
                os.close(fd)
                raise TrimtabError(f"run folder {self.path} is in use by {self._holder()}: stop it or choose another folder") from None
            except OSError:
                os.close(fd)
                raise
        self._fd = fd
        # The lock belongs to the open file, which a forked child shares: it would hold the lock beyond our death.
        me = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget(me()))
        try:
            self._check()
            with disk(self.path):
                for temp in [*self.path.glob(f"{TEMP}*"), *self.path.glob(f"*/{TEMP}*")]:
                    shutil.rmtree(temp) if temp.is_dir() else temp.unlink()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._release()

    def _release(self) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None

    def _check(self) -> None:
        """A run exists from the moment its resolved configuration does."""
        with _looking(self.path):
            there = self.config_json.exists()
        if self._fresh and there:
            raise TrimtabError(
                f"run folder {self.path} already holds a run: continue it with `trimtab resume {self.path}` or choose another name"
            )
        if not self._fresh and not there:
            raise TrimtabError(
                f"run folder {self.path} holds no run (it has no config.json): give the folder that `trimtab train` wrote to"
            )

    def _holder(self) -> str:
        try:
            holder = parse_json(self.lock.read_text())
            return f"process {holder['pid']} on {holder['host']}" if isinstance(holder, dict) else "another process"
        except (OSError, ValueError, KeyError):  # taken, but not yet signed
            return "another process"


def _looking(path: Path) -> AbstractContextManager[None]:
    return disk(path, "nothing was changed", what="read", then=", or choose another folder")


def _forget(folder: RunFolder | None) -> None:
    """In a forked child: close its copy of the lock without unlocking ours."""
    if folder is not None and folder._fd is not None:
        os.close(folder._fd)
        folder._fd = None
