"""Start a worker's or an evaluator's process: a socket to talk over, a lifeline it dies with, the shared weights."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection

from trimtab.rollout.messages import FromWorker, ToWorker, WorkerSpec

PATIENCE_S = 20  # a message that stands still half-way for so long is the end of the one who sends or should take it


class WorkerProcess:
    """A child in a process group of its own. Closing the lifeline, or our death, kills the group."""

    def __init__(self, spec: WorkerSpec, weights_fd: int | None = None) -> None:
        ours, theirs = socket.socketpair()
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", PATIENCE_S, 0))
        lifeline, held = os.pipe()
        module = "trimtab.rollout.evaluator" if weights_fd is None else "trimtab.rollout.worker"
        fds = [theirs.fileno(), *([] if weights_fd is None else [weights_fd])]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trimtab.tasks.lifeline", str(lifeline), module, *(str(fd) for fd in fds)],
                pass_fds=[lifeline, *fds],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a task prints must not mix with our output
                env={"OMP_NUM_THREADS": str(spec.threads), **os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
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
        self._input = select.poll()
        self._input.register(self.connection, select.POLLIN)
        self._held = os.fdopen(held, "wb")
        with suppress(OSError):  # it is dead already, which whoever listens to it will find
            self.connection.send(spec)

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, message: ToWorker) -> None:
        """Raises OSError where the process is gone or has taken nothing for ``PATIENCE_S``; it cannot be talked to any more."""
        self.connection.send(message)

    def messages(self, seconds: float = 0.0) -> Iterator[FromWorker]:
        """What it has said; waits up to ``seconds`` for the first. Raises EOFError or OSError where it is gone, as ``send`` does."""
        while self._input.poll(1000 * seconds):
            yield self.connection.recv()
            seconds = 0.0

    def interrupt(self) -> None:
        """Kill it, but leave it to be found dead: for a caller that does not own it."""
        with suppress(ProcessLookupError, PermissionError):  # all of it is gone already
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> str:
        """Make sure that it has ended, and say how; it has a moment to do so by itself."""
        code = None
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(3.0)
        self.kill()
        if code is None:
            return f"its socket ended or stood still for {PATIENCE_S} s"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        """End the process group and give its resources back."""
        if self._held.closed:
            return
        self.interrupt()
        self.process.wait()
        self.connection.close()
        self._held.close()
