"""A process of ours and what we hold of it: a socket to talk over, and a lifeline it dies with."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from trimtab.tasks.own_module import python_path, searched


class Child:
    """``python -m MODULE SOCKET FD...`` in a process group of its own. Closing the lifeline, or our death, kills the group.

    ``launcher`` is the module that arms the process and runs the other one. ``first`` is sent at once. A send or receive that makes no
    progress for ``patience_s`` raises OSError, so that a stopped process does not stop us.
    """

    def __init__(
        self,
        module: str,
        first: object,
        *,
        patience_s: int,
        threads: int,
        fds: Sequence[int] = (),
        launcher: str = "trimtab.tasks.lifeline",
        launcher_fds: Sequence[int] = (),
        launcher_words: Sequence[str] = (),
    ) -> None:
        ours, theirs = socket.socketpair()
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", patience_s, 0))
        lifeline, held = os.pipe()
        given = [theirs.fileno(), *fds]
        armed = [lifeline, *launcher_fds]
        path = os.pathsep.join(searched())
        try:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    launcher,
                    *map(str, (lifeline, *launcher_fds)),
                    *launcher_words,
                    path,
                    module,
                    *map(str, given),
                ],
                pass_fds=[*armed, *given],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a task prints must not mix with our output
                env={"OMP_NUM_THREADS": str(threads), **os.environ, "PYTHONPATH": python_path()},
                process_group=0,
            )
        except BaseException:
            ours.close()
            os.close(held)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self.connection = Connection(ours.detach())
        self._input = select.poll()  # connection.poll() makes a selector at every call
        self._input.register(self.connection, select.POLLIN)
        self._held = os.fdopen(held, "wb")
        with suppress(OSError):  # it is dead already, which whoever listens to it will find
            self.connection.send(first)

    @property
    def pid(self) -> int:
        return self.process.pid

    def has_message(self, seconds: float = 0.0) -> bool:
        """Whether ``connection.recv()`` has something to say, if only that the process is gone; waits up to ``seconds`` for it."""
        return bool(self._input.poll(1000 * seconds))

    def interrupt(self) -> None:
        """Kill it, but leave it to be found dead: for a caller that does not own it."""
        with suppress(ProcessLookupError, PermissionError):  # all of it is gone already
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill(self) -> int:
        """End the process group and give its resources back; the exit code."""
        if not self.connection.closed:
            if self.process.returncode is None:
                self.interrupt()
            self.process.wait()
            self.connection.close()
            self._held.close()
        return self.process.wait()
