"""Start a worker's or an evaluator's process, and talk to it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress

from trimtab.rollout.messages import FromWorker, ToWorker, WorkerSpec
from trimtab.tasks.child import Child

PATIENCE_S = 20  # a message that stands still half-way for so long is the end of the one who sends or should take it


class WorkerProcess(Child):
    """A worker that takes its weights from ``weights_fd``, or an evaluator, which has none."""

    def __init__(self, spec: WorkerSpec, weights_fd: int | None = None) -> None:
        module, fds = ("trimtab.rollout.evaluator", []) if weights_fd is None else ("trimtab.rollout.worker", [weights_fd])
        super().__init__(module, spec, patience_s=PATIENCE_S, threads=spec.threads, fds=fds)

    def send(self, message: ToWorker) -> None:
        """Raises OSError where the process is gone or has taken nothing for ``PATIENCE_S``; it cannot be talked to any more."""
        self.connection.send(message)

    def messages(self, seconds: float = 0.0) -> Iterator[FromWorker]:
        """What it has said; waits up to ``seconds`` for the first. Raises EOFError or OSError where it is gone, as ``send`` does."""
        while self.has_message(seconds):
            yield self.connection.recv()
            seconds = 0.0

    def end(self) -> str:
        """Make sure that it has ended, and say how; it has a moment to do so by itself."""
        code = None
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(3.0)
        self.kill()
        if code is None:
            return f"its socket ended or stood still for {PATIENCE_S} s"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
