"""A file of one JSON object a line, read from disk a row at a time: memory holds 24 bytes a row, whatever a row weighs."""

from __future__ import annotations

import hashlib
import os
import stat
import weakref
import zlib
from array import array
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from trimtab.records import I32, I64, TrimtabError

_BOM = b"\xef\xbb\xbf"
_TOLD = 3  # bad rows that a message names


class BadRow(Exception):
    """Why a row cannot be used, as what follows "line 7": `` is not JSON``, ``, column 'x': ...``."""


class RowFile:
    """The good rows of a file, in its order. ``look`` reads a line once and gives a number by which equal prompts are known; it raises
    :class:`BadRow` for a line that is no row. What it raises it for is left out, and counted in ``bad``.

    The file is opened once: a new file under its name changes nothing here. Raises TrimtabError where it cannot be read.
    """

    def __init__(self, path: str, field: str, look: Callable[[bytes], int]) -> None:
        self.path, self.field = path, field
        self.bad = 0
        self._first: list[tuple[int, str]] = []  # the first bad ones: line, why
        starts, lengths, numbers = array("q"), array("i"), array("i")
        sums, identities = array("I"), array("Q")
        digest = hashlib.blake2b(digest_size=16)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a writer would be waited for
            weakref.finalize(self, os.close, fd)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise TrimtabError.field(field, path, "is no regular file, and rows are read from it at any place; save them to one")
            at = 0
            with open(fd, "rb", closefd=False) as lines:
                for number, line in enumerate(lines, start=1):
                    digest.update(line)
                    skip = len(_BOM) if number == 1 and line.startswith(_BOM) else 0
                    if line[skip:].strip():
                        try:
                            identities.append(look(line[skip:]))
                        except BadRow as why:
                            self.bad += 1
                            if len(self._first) < _TOLD:
                                self._first.append((number, str(why)))
                        else:
                            starts.append(at + skip)
                            lengths.append(len(line) - skip)
                            numbers.append(number)
                            sums.append(zlib.crc32(line[skip:]))
                    at += len(line)
        except OSError as error:
            raise TrimtabError.field(field, path, f"cannot be read ({error.strerror})") from None
        self._fd = fd
        self._starts: I64 = np.frombuffer(starts, np.int64) if starts else np.zeros(0, np.int64)
        self._lengths: I32 = np.frombuffer(lengths, np.int32) if lengths else np.zeros(0, np.int32)
        self._numbers: I32 = np.frombuffer(numbers, np.int32) if numbers else np.zeros(0, np.int32)
        self._sums: npt.NDArray[np.uint32] = np.frombuffer(sums, np.uint32) if sums else np.zeros(0, np.uint32)
        self.identities: npt.NDArray[np.uint64] = np.frombuffer(identities, np.uint64) if identities else np.zeros(0, np.uint64)
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._starts)

    def number(self, row: int) -> int:
        """The line in the file, from 1."""
        return int(self._numbers[row])

    def line(self, row: int) -> bytes:
        """Raises TrimtabError where the file is not what it was when it was read first."""
        try:
            found = os.pread(self._fd, int(self._lengths[row]), int(self._starts[row]))
        except OSError as error:
            raise TrimtabError.field(self.field, self.path, f"line {self.number(row)} cannot be read ({error.strerror})") from None
        if zlib.crc32(found) != self._sums[row]:
            remedy = f"line {self.number(row)} is not what it was at the start: the file was written to meanwhile; leave it as it is"
            raise TrimtabError.field(self.field, self.path, remedy)
        return found

    def complaint(self) -> str:
        """The first bad rows by line, and how many there are; "" where there is none."""
        told = "; ".join(f"line {number}{why}" for number, why in self._first)
        more = self.bad - len(self._first)
        return f"{told}; and {more} more" if more else told
