"""Writing so that a reader sees the old bytes or the new ones, whatever moment the process or the machine dies at.

``write -> fsync the file -> rename -> fsync the folder``: the rename is atomic, the first fsync makes sure it never names
bytes that are not there, the second makes the rename itself survive.
"""

import errno
import os
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


def disk_error(path: Path, error: OSError, kept: str = "what was there before is unchanged") -> TrimtabError:
    """One sentence for a failed write: what, why, what is still good, what to do."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    why = "the disk is full" if full else (error.strerror or str(error))
    remedy = "free some space" if full else "make it writable"
    return TrimtabError(f"{path} could not be written because {why}: {kept}; {remedy} and continue with `trimtab resume`")
