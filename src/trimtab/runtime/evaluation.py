"""Evaluation during a run: pinned to a version, not blocking, the best model kept."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trimtab.engines.checkpoint import Policy, save_policy
from trimtab.records import StoppedByRule
from trimtab.rollout.launch import WorkerProcess
from trimtab.rollout.messages import Broken, Evaluate, Evaluated, Stop, WorkerSpec
from trimtab.runtime.session import Session

log = logging.getLogger(__name__)

DRAIN_S = 600.0  # at the end of a run, pending evaluations are waited for this long


class Evaluations:
    """Saves the model of the version to be evaluated, asks the evaluator's process, takes answers as they come.

    One process, started at the first evaluation. A new question waits in its socket while an older one is being answered.
    """

    def __init__(self, session: Session, policy: Policy, make_spec: Callable[[str], WorkerSpec]) -> None:
        self._session, self._policy, self._make_spec = session, policy, make_spec
        self._options = session.config.eval
        self._folder = session.folder.path / "eval"
        self._process: WorkerProcess | None = None
        self._pending: dict[int, Path] = {}
        self._best: float | None = session.accuracy.get("best")

    def after_batch(self) -> None:
        """Ask where an evaluation is due; record what has been answered."""
        consumed = self._session.consumed
        if self._options.every and consumed % self._options.every == 0 and consumed < self._session.config.learner.batches:
            self._ask(consumed)
        self._take(0.0)

    def close(self) -> None:
        """Wait for what is pending, then end the process."""
        if self._process is None:
            return
        try:
            while self._pending:
                if not self._take(DRAIN_S):
                    raise StoppedByRule(f"eval: no answer from the evaluator for {DRAIN_S:g} s")
            with suppress(OSError):
                self._process.send(Stop())
            self._process.wait(2.0)
        finally:
            self._process.kill()
            self._process = None
            shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, batch: int) -> None:
        with self._session.clock.span("eval"):
            if self._process is None:
                self._process = WorkerProcess(self._make_spec("evaluator"))
            folder = self._pending[batch] = self._folder / f"{batch:06d}"
            save_policy(self._policy.model, self._policy.tokenizer, folder)
            rows = self._options.prompts
            self._process.send(Evaluate(batch, self._session.version.number, str(folder), rows, self._options.seed))

    def _take(self, seconds: float) -> bool:
        """Take one answer after the other; True if there was one within ``seconds``."""
        found = False
        while self._process is not None and self._process.connection.poll(seconds):
            try:
                message = self._process.connection.recv()
            except (EOFError, ConnectionResetError):
                raise StoppedByRule("eval: the evaluator's process died; see run.log in the run folder") from None
            if isinstance(message, Broken):
                raise StoppedByRule(f"eval: {message.reason}")
            if isinstance(message, Evaluated):
                self._record(message)
                found, seconds = True, 0.0
        return found

    def _record(self, e: Evaluated) -> None:
        extra = {"score": e.score, "truncated": e.truncated, "length": e.length, "rows": e.rows, "seconds": e.seconds}
        self._session.evaluated("during", e.batch, e.version, e.accuracy, extra)
        folder = self._pending.pop(e.batch)
        best = self._best is None or e.accuracy > self._best
        if best and self._options.keep_best:
            self._best = self._session.accuracy["best"] = e.accuracy
            target = self._session.folder.path / "best"
            shutil.rmtree(target, ignore_errors=True)
            folder.rename(target)
        else:
            shutil.rmtree(folder, ignore_errors=True)
