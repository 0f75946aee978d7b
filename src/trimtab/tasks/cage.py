"""A scorer's cage: ``python -P -m trimtab.tasks.cage LIFELINE RING ISOLATE PATH MODULE ...`` runs the module and outlives it, nobody else.

::

    our process ── lifeline, socket ──▶ cage ──▶ [ first of a namespace, which the kernel ends with the cage ]
                                          └────▶ [ the scorer ──▶ whatever it starts                        ]

The cage holds no state and imports next to nothing. It keeps the end of what the scorer prints (``RING``, :mod:`~.printed`), and when
the scorer ends, or the lifeline does, it ends everything that descends from the scorer (:mod:`~.isolation`) and then ends as the scorer
did: with its exit code or its signal. ``ISOLATE`` is 1, or 0 for no namespace.
"""

from __future__ import annotations

import os
import resource
import runpy
import select
import signal
import sys
import time
from contextlib import suppress

from trimtab.tasks.isolation import Isolation, isolate, kill_descendants, own_proc
from trimtab.tasks.lifeline import die_with_parent
from trimtab.tasks.own_module import search_last
from trimtab.tasks.printed import Ring

END_S = 5.0  # longest wait for killed processes to be gone
CHUNK = 1 << 16


def main() -> None:
    lifeline, ring_fd = int(sys.argv[1]), int(sys.argv[2])
    ring = Ring(ring_fd)
    os.close(ring_fd)
    isolation = isolate(namespace=sys.argv[3] == "1")
    ring.begin(isolation)
    hold = _first_of_namespace() if isolation is Isolation.NAMESPACE else -1
    printed, prints = os.pipe()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(printed, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    scorer = os.fork()
    if scorer == 0:
        _become_scorer(lifeline, prints, isolation, [fd for fd in (hold, printed, woken, wake) if fd >= 0])
        return
    given = [int(a) for a in sys.argv[6:] if a.isdigit()]  # the scorer's own: its end must be seen at the other end of the socket
    for fd in (prints, *given):
        os.close(fd)
    status = _watch(lifeline, printed, woken, scorer, ring)
    status = _end(status, scorer, hold, isolation)
    _take(printed, ring, most=1 << 24)  # what the pipe holds is less
    _end_like(status)


def _first_of_namespace() -> int:
    """Start the first process of the namespace, which reaps orphans and ends when the pipe to it does: our end of that pipe."""
    ends, hold = os.pipe()
    if os.fork() == 0:
        os.dup2(ends, 0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.closerange(3, max(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans are reaped by the kernel
        os.read(0, 1)
        os._exit(0)
    os.close(ends)
    return hold


def _become_scorer(lifeline: int, prints: int, isolation: Isolation, ours: list[int]) -> None:
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd in ours:
        os.close(fd)
    os.dup2(prints, 1)
    os.dup2(prints, 2)
    os.close(prints)
    die_with_parent(lifeline)
    if isolation is Isolation.NAMESPACE:
        own_proc()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what is printed before a crash is worth most
    search_last(sys.argv[4].split(os.pathsep))
    sys.argv[:5] = []
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _watch(lifeline: int, printed: int, woken: int, scorer: int, ring: Ring) -> int | None:
    """Keep what is printed until the scorer has ended (its status) or the lifeline has (None)."""
    poll = select.poll()
    for fd in (lifeline, printed, woken):
        poll.register(fd, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if printed in ready and not _take(printed, ring):
            poll.unregister(printed)  # closed by everybody
        if woken in ready:
            os.read(woken, CHUNK)
        status, _ = _reap(scorer)
        if status is not None or lifeline in ready:
            return status


def _take(printed: int, ring: Ring, most: int = CHUNK) -> bool:
    """Move what has been printed into the ring, as far as it is there; False at the end of the pipe."""
    with suppress(BlockingIOError):
        while most > 0:
            data = os.read(printed, CHUNK)
            if not data:
                return False
            ring.write(data)
            most -= len(data)
    return True


def _reap(scorer: int) -> tuple[int | None, bool]:
    """Take in every child that has ended: the scorer's status where it is one of them, and whether there are others still."""
    status = None
    try:
        while True:
            pid, found = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return status, True
            status = found if pid == scorer else status
    except ChildProcessError:
        return status, False


def _end(status: int | None, scorer: int, hold: int, isolation: Isolation) -> int:
    """End everything that is left; the scorer's status."""
    if hold >= 0:
        os.close(hold)  # the first of the namespace ends, and the kernel ends the others
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(scorer, signal.SIGKILL)
    until = time.monotonic() + END_S
    while time.monotonic() < until:
        if isolation is Isolation.ORPHANS:
            kill_descendants()
        found, left = _reap(scorer)
        status = status if found is None else found
        if not left:
            break
        time.sleep(0.002)
    return int(signal.SIGKILL) if status is None else status


def _end_like(status: int) -> None:
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
