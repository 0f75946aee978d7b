"""Writing so that a reader sees the old bytes or the new ones, whatever moment the process or the machine dies at.

``write -> fsync the file -> rename -> fsync the folder``: the rename is atomic, the first fsync makes sure it never names
bytes that are not there, the second makes the rename itself survive.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trimtab.records import TrimtabError

TEMP = ".tmp-"  # what begins so is unfinished, and is removed when the run folder is next opened for writing


def write_file(path: Path, data: bytes | memoryview) -> None:
    """Write a new file and wait until its bytes are on the disk. Not atomic: for files inside a folder that is renamed later."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """``os.write`` until everything is written: a nearly full disk takes a part first and fails only then."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(fd, rest) :]


def write_atomic(path: Path, data: bytes | memoryview) -> None:
    """Put ``data`` at ``path`` whole or not at all.

    Raises:
        TrimtabError: it could not be written (full disk, no permission); what stood at ``path`` before still does.
    """
    temp = path.with_name(f"{TEMP}{path.name}-{os.getpid()}")
    try:
        write_file(temp, data)
        os.replace(temp, path)
        sync(path.parent)
    except OSError as error:
        temp.unlink(missing_ok=True)
        raise disk_error(path, error) from error


def sync(path: Path) -> None:
    """Wait until a file's bytes, or the names in a folder, are on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


KEPT = "what was there before is unchanged"
RESUME = " and continue with `trimtab resume`"
_FULL = ("the disk is full", "free some space")
_MANY = ("too many files are open", "raise the limit (ulimit -n)")
_REASONS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EMFILE: _MANY,
    errno.ENFILE: _MANY,
    errno.ENOMEM: ("the machine has no memory left", "free some"),
    errno.EROFS: ("the file system is read-only", "make it writable"),
    errno.ENAMETOOLONG: ("its name is too long", "give a shorter one"),
    errno.EACCES: ("it is not permitted", "change its permissions"),
    errno.EPERM: ("it is not permitted", "change its permissions"),
    errno.ENOTDIR: ("a part of the path is a file", "move that file away"),
    errno.EIO: ("the disk failed to read or write", "look after the disk"),
}


def disk_error(path: Path, error: OSError, kept: str = KEPT, *, what: str = "written", then: str = RESUME) -> TrimtabError:
    """One sentence for a file or folder of a run that the machine refuses: what, why, what is still good, what to do."""
    why, remedy = _REASONS.get(error.errno or 0, (error.strerror or str(error), f"make it {'readable' if what == 'read' else 'writable'}"))
    return TrimtabError(f"{path} could not be {what} because {why}: {kept}; {remedy}{then}")


@contextmanager
def disk(path: Path, kept: str = KEPT, *, what: str = "written", then: str = RESUME) -> Iterator[None]:
    """Inside, an OSError is that sentence."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, error, kept, what=what, then=then) from error


def refused(error: OSError, path: Path) -> TrimtabError | None:
    """That sentence for an error of the machine from anywhere, about ``path`` where it names no file; None for any other error."""
    return disk_error(Path(str(error.filename or path)), error, what="opened or written", then="") if error.errno in _REASONS else None


def exhausted(error: OSError) -> bool:
    """The process or the machine lacks something (descriptors, memory): that says nothing about the file."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
