"""Every rollout of a run, in parquet: what ``replay`` feeds again, what ``show`` prints, what any notebook opens.

Entries gather in memory and are written as one small file, atomically, every ``CHUNK`` batches and at each ``flush``. The run
flushes before it saves a checkpoint, so a crash loses only entries of batches after the checkpoint, which are trained anew.
Files are ``NNNNNN.parquet`` in the order of writing: the columns of :mod:`trimtab.store.codec` after those of :class:`LoggedGroups`.
"""

import logging
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trimtab.records import Group
from trimtab.store.codec import group_column, groups_to_table, table_to_groups, to_parquet
from trimtab.store.durable import disk, disk_error, exhausted, write_atomic

log = logging.getLogger(__name__)

CHUNK = 25  # batches a file
_TOKENS = 1 << 20  # a file is also closed at so many tokens, which bounds what waits in memory
_KEYS = ("batch", "version", "trained", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedGroups:
    """Groups that reached the learner together: trained in batch number ``batch`` at ``version``, or let go then, and why."""

    batch: int
    version: int
    trained: bool
    reason: str
    groups: tuple[Group, ...]


class RolloutLog:
    """The writer. Not thread-safe; one a run folder, under its lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next = 1 + max((int(p.stem) for p in _files(folder)), default=-1)
        self._waiting: list[LoggedGroups] = []
        self._tokens = 0

    def append(self, batch: int, version: int, groups: Sequence[Group], *, trained: bool = True, reason: str = "") -> None:
        """Log groups of one batch.

        Raises:
            TrimtabError: a file was due and could not be written.
        """
        self._waiting.append(LoggedGroups(batch=batch, version=version, trained=trained, reason=reason, groups=tuple(groups)))
        self._tokens += sum(len(s.tokens) for g in groups for r in g.rollouts for s in r.segments)
        if batch - self._waiting[0].batch >= CHUNK - 1 or self._tokens >= _TOKENS:
            self.flush()

    def flush(self) -> None:
        """Make all entries so far durable; called before a checkpoint is saved.

        Raises:
            TrimtabError: the file could not be written; the entries are kept for another try.
        """
        groups = [group for entry in self._waiting for group in entry.groups]
        if groups:
            extra = {key: [getattr(entry, key) for entry in self._waiting for _ in entry.groups] for key in _KEYS}
            write_atomic(self._folder / f"{self._next:06d}.parquet", to_parquet(groups_to_table(groups, extra)))
            self._next += 1
        self._waiting, self._tokens = [], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.flush()


def read(folder: Path, batches: Container[int] | None = None) -> Iterator[LoggedGroups]:
    """The logged entries in order of writing, of all batches or of those named."""
    for path in _files(folder):
        table = _table(path)
        if table is None:
            continue
        if batches is not None:
            table = table.filter(pa.array([b in batches for b in table["batch"].to_pylist()], pa.bool_()))
        keys = zip(*(group_column(table, key) for key in _KEYS), strict=True)
        for key, pairs in groupby(zip(keys, table_to_groups(table), strict=True), key=lambda pair: pair[0]):
            batch, version, trained, reason = key
            yield LoggedGroups(batch=batch, version=version, trained=trained, reason=reason, groups=tuple(group for _, group in pairs))


def last_batch(folder: Path) -> int | None:
    """The newest batch on record, read off the last file that can be; None where nothing is logged."""
    for path in reversed(_files(folder)):
        table = _table(path, ["batch"])
        if table is not None and len(table):
            return int(pc.max(table["batch"]).as_py())
    return None


def truncate_to(folder: Path, batch: int, orphans: Path) -> int:
    """Keep the entries of the first ``batch`` batches; move the rest to ``orphans``. Returns the number of rows moved.

    Rollouts on record are history, nothing that the run needs: a file that cannot be read goes to ``orphans`` whole.
    """
    moved = 0
    for path in _files(folder):
        known = _table(path)
        if known is None:
            orphans.mkdir(parents=True, exist_ok=True)
            path.rename(orphans / path.name)
            log.warning("%s is moved to %s: the run does without these rollouts", path, orphans)
            continue
        dead = pc.greater_equal(known["batch"], batch)
        count = pc.sum(dead).as_py()
        if not count:
            continue
        orphans.mkdir(parents=True, exist_ok=True)
        moved += count
        if count == len(dead):
            path.rename(orphans / path.name)
            continue
        write_atomic(orphans / path.name, to_parquet(known.filter(dead)))
        write_atomic(path, to_parquet(known.filter(pc.invert(dead))))
    return moved


def _table(path: Path, columns: Sequence[str] | None = None) -> pa.Table | None:
    """A file of the log; None, and a warning, where it is damaged."""
    try:
        if not set(_KEYS) <= set(pq.read_schema(path).names):
            raise ValueError("it has other columns")
        return pq.read_table(path, columns=columns, page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and exhausted(error):
            raise disk_error(path, error, what="read") from error
        log.warning("%s cannot be read and is left out: %s", path, next(iter(str(error).splitlines()), type(error).__name__))
        return None


def _files(folder: Path) -> list[Path]:
    """The log's own files, oldest first; what else lies there is not ours."""
    with disk(folder, what="read"):
        return sorted(
            (p for p in folder.glob("*.parquet") if p.stem.isascii() and p.stem.isdigit() and p.is_file()), key=lambda p: int(p.stem)
        )
