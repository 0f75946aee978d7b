"""What the kernel can do against processes that get away: a process namespace, or at least orphans that come to us. Linux only.

In a process namespace a process sees, and can signal, its own kind alone, and the kernel ends all of them with the first one, whatever
sessions and groups they have made. Root gets one as it is; anybody else needs a user namespace around it, in which one keeps one's own
name, files and groups. Many containers forbid both. No import of ours: this runs before anything is loaded.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from enum import IntEnum

_NEWNS, _NEWUSER, _NEWPID = 0x20000, 0x10000000, 0x20000000  # of unshare(2)
_MS_NOSUID_NODEV_NOEXEC, _MS_REC, _MS_SLAVE = 2 | 4 | 8, 0x4000, 0x80000  # of mount(2)
_PR_SET_CHILD_SUBREAPER = 36


class Isolation(IntEnum):
    """How far a scorer's processes are kept from ours."""

    UNKNOWN = 0
    NONE = 1  # the process group alone is ended
    ORPHANS = 2  # whatever descends from the scorer is ended
    NAMESPACE = 3  # and none of it can signal a process of the run


def isolate(namespace: bool = True) -> Isolation:
    """Have the next child of this process be the first of a namespace, or else orphans come to it. It must have one thread."""
    if not sys.platform.startswith("linux"):
        return Isolation.NONE
    if namespace and _works():
        _unshare()
        return Isolation.NAMESPACE
    try:
        _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except OSError:
        return Isolation.NONE
    return Isolation.ORPHANS


def own_proc() -> None:
    """In the namespace: a /proc that shows it, so that ``/proc/self`` and psutil are right. Left as it is where that is forbidden."""
    with suppress(OSError):
        _call("mount", b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None)
        _call("mount", b"proc", b"/proc", b"proc", ctypes.c_ulong(_MS_NOSUID_NODEV_NOEXEC), None)


def kill_descendants() -> None:
    """SIGKILL everything that descends from this process now. Needs /proc."""
    for pid in _descendants(os.getpid()):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _works() -> bool:
    """Try it in a child: half-way through, there is no way back."""
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(OSError):
            _unshare()
            first = os.fork()
            if first == 0:
                os._exit(0)
            code = os.waitpid(first, 0)[1]
        os._exit(int(code != 0))
    return os.waitpid(child, 0)[1] == 0


def _unshare() -> None:
    if os.geteuid() == 0:  # in a user namespace it would lose its way with files of others
        _call("unshare", _NEWPID | _NEWNS)
        return
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", _NEWUSER | _NEWPID | _NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _descendants(ancestor: int) -> set[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as stat:
                state, parent = stat.read().rpartition(b")")[2].split()[:2]  # the name before it may hold anything
                if state != b"Z":
                    parents[int(name)] = int(parent)
    found: set[int] = set()
    new = {ancestor}
    while new := {pid for pid, parent in parents.items() if parent in new} - found:
        found |= new
    return found
