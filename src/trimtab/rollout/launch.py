"""Start a worker's or an evaluator's process: a socket to talk over, a lifeline it dies with, the shared weights."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

from trimtab.rollout.messages import ToWorker, WorkerSpec


class WorkerProcess:
    """A child in a process group of its own. Closing the lifeline, or our death, kills the group."""

    def __init__(self, spec: WorkerSpec, weights_fd: int | None = None) -> None:
        ours, theirs = socket.socketpair()
        lifeline, held = os.pipe()
        fds = [theirs.fileno(), lifeline, *([] if weights_fd is None else [weights_fd])]
        module = "trimtab.rollout.evaluator" if weights_fd is None else "trimtab.rollout.worker"
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *(str(fd) for fd in fds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                env={"OMP_NUM_THREADS": str(spec.threads), **os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
                process_group=0,
            )
        finally:
            theirs.close()
            os.close(lifeline)
        self.connection = Connection(ours.detach())
        self._held = os.fdopen(held, "wb")
        self.connection.send(spec)

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, message: ToWorker) -> None:
        """Raises BrokenPipeError (an OSError) where the worker is gone."""
        self.connection.send(message)

    def wait(self, seconds: float) -> bool:
        """True if it has exited within that time."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
            return True
        return False

    def kill(self) -> int:
        """End the process group and give its resources back; the exit code (negative: the signal)."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        self.connection.close()
        self._held.close()
        return code
