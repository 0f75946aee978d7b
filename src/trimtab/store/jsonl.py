"""Append-only logs, one JSON object a line, and cutting them back to a checkpoint.

``batch`` in a record is the number of the batch it belongs to (from 0). A record without one belongs to the same lineage as
the record before it.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from trimtab.foreign import parse_json
from trimtab.records import Json
from trimtab.store.durable import disk, disk_error, write_all, write_atomic

log = logging.getLogger(__name__)


class JsonLines:
    """An open log. A record is visible to readers, and survives ``kill -9``, once ``append`` returns.

    Raises:
        TrimtabError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, record: Mapping[str, Json]) -> None:
        """Write one record. A write that fails half-way is taken back, so that the log stays whole lines.

        Raises:
            TrimtabError: the disk is full or the file cannot be written.
        """
        size = os.fstat(self._fd).st_size
        try:
            write_all(self._fd, (json.dumps(record) + "\n").encode())
        except OSError as error:
            os.ftruncate(self._fd, size)
            raise disk_error(self.path, error, "all earlier records are in it") from error

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def read_jsonl(path: Path) -> Iterator[dict[str, Json]]:
    """The records of a log; nothing if there is no such file. A torn last line, the mark of a crash, is left out.

    So is a damaged line elsewhere, with a warning: a log is history, which must not keep a run from going on.
    """
    with disk(path, what="read"):
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    damaged = []
    for number, line in enumerate(lines, 1):
        record = _parse(line)
        if record is not None:
            yield record
        elif number < len(lines):
            damaged.append(number)
    if damaged:
        log.warning("%s: %d lines are no JSON objects and are left out (the first is line %d)", path, len(damaged), damaged[0])


def truncate_to(path: Path, batch: int, orphans: Path) -> int:
    """Keep the records of the first ``batch`` batches; move the rest, and lines that cannot be read, to ``orphans``.

    The orphans are durable before the log is cut, so nothing is lost at a crash in between (the next resume moves it again).

    Returns:
        The number of lines moved.
    """
    if not path.exists():
        return 0
    kept: list[bytes] = []
    moved: list[bytes] = []
    dead = False
    for line in path.read_bytes().splitlines(keepends=True):
        record = _parse(line)
        if record is None:
            log.warning("%s: a torn line of %d bytes is moved to %s", path, len(line), orphans)
            moved.append(line)
            continue
        number = record.get("batch")
        if isinstance(number, int | float):
            dead = number >= batch
        (moved if dead else kept).append(line)
    if moved:
        orphans.mkdir(parents=True, exist_ok=True)
        write_atomic(orphans / path.name, b"".join(moved))
        write_atomic(path, b"".join(kept))
    return len(moved)


def _parse(line: bytes) -> dict[str, Json] | None:
    """The record, or None where the line is torn."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = parse_json(line)
    except ValueError:  # includes bytes that are not UTF-8
        return None
    return record if isinstance(record, dict) else None
