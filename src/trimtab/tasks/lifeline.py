"""Children that die with their parent: ``python -P -m trimtab.tasks.lifeline FD PATH MODULE ...`` arms the process, then runs the module.

``FD`` is the reading end of a pipe whose other end only the parent holds. Armed before anything else is loaded: a child that is
still starting when its parent is killed does not live on for as long as its imports take. ``PATH``: the parent's folders of modules.
"""

from __future__ import annotations

import fcntl
import os
import runpy
import select
import signal
import sys
import threading

from trimtab.tasks.own_module import search_last


def die_with_parent(lifeline: int) -> None:
    """SIGKILL this process (and its group, where it leads one) once every holder of the pipe's other end is gone.

    On Linux the kernel does it, also while a scorer holds the interpreter lock (a runaway regular expression); PDEATHSIG would
    fire when the *thread* that started us ends. Elsewhere a thread waits for the end of the pipe.
    """
    leads = os.getpgrp() == os.getpid()
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid() if leads else os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        if select.select([lifeline], [], [], 0)[0]:  # it ended before we armed
            os._exit(1)
    else:

        def watch() -> None:
            os.read(lifeline, 1)
            os.kill(-os.getpid() if leads else os.getpid(), signal.SIGKILL)

        threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    search_last(sys.argv[2].split(os.pathsep))
    sys.argv[:3] = []
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
