"""What a scorer prints: its end, in a piece of memory that its cage writes and we read, however much it is."""

from __future__ import annotations

import logging
import mmap
import os
import struct
import tempfile
import time

from trimtab.tasks.isolation import Isolation

log = logging.getLogger(__name__)

SIZE = 64 * 1024  # bytes kept
SHOWN = 4000  # characters of them that are logged at once
FIRST_S, MOST_S = 1.0, 600.0  # between two looks at a scorer that goes on printing: twice as long each time
_HEAD = struct.Struct("<QQ")  # bytes printed so far, isolation


class Ring:
    """The last ``SIZE`` bytes of a stream, shared by two processes. A reader may meet a writer half-way: this is for people to look at."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, _HEAD.size + SIZE)

    @staticmethod
    def create() -> int:
        """A file without a name for one; the caller closes it."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("trimtab-printed")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, _HEAD.size + SIZE)
        return fd

    @property
    def total(self) -> int:
        return int(_HEAD.unpack_from(self._map)[0])

    @property
    def isolation(self) -> Isolation:
        return Isolation(_HEAD.unpack_from(self._map)[1])

    def begin(self, isolation: Isolation) -> None:
        _HEAD.pack_into(self._map, 0, 0, isolation)

    def write(self, data: bytes) -> None:
        total, isolation = _HEAD.unpack_from(self._map)
        kept = data[-SIZE:]
        at = (total + len(data) - len(kept)) % SIZE
        head = kept[: SIZE - at]
        self._map[_HEAD.size + at : _HEAD.size + at + len(head)] = head
        self._map[_HEAD.size : _HEAD.size + len(kept) - len(head)] = kept[len(head) :]
        _HEAD.pack_into(self._map, 0, total + len(data), isolation)

    def since(self, seen: int) -> bytes:
        """What came after the first ``seen`` bytes, or the last of it."""
        total = self.total
        n = min(total - seen, SIZE)
        body = self._map[_HEAD.size :]
        at = (total - n) % SIZE
        return (body + body)[at : at + n]

    def close(self) -> None:
        self._map.close()


def readable(data: bytes) -> str:
    """Text of somebody else's: control characters are shown, not obeyed."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


class PrintedLog:
    """Logs the end of what one scorer's processes print, seldom enough that nothing fills up."""

    def __init__(self, scorer: str) -> None:
        self._scorer = scorer
        self._told: dict[int, int] = {}  # bytes told of, by id of the ring
        self._wait = FIRST_S
        self._next = time.monotonic() + FIRST_S

    def look(self, ring: Ring, *, last: bool = False) -> None:
        """Tell what is new, if it is time for that. ``last``: the process has ended."""
        total, told = ring.total, self._told.get(id(ring), 0)
        if total > told and (last or time.monotonic() >= self._next):
            text = readable(ring.since(told))
            cut = f"...{text[-SHOWN:]}" if len(text) > SHOWN or total - told > SIZE else text
            log.info("scorer %s printed %s bytes", self._scorer, f"{total - told:,}", extra={"printed": cut.removesuffix("\n")})
            self._told[id(ring)] = total
            self._wait = min(2 * self._wait, MOST_S)
            self._next = time.monotonic() + self._wait
        if last:
            self._told.pop(id(ring), None)
