"""Evaluation during a run: pinned to a version, not blocking, the best model kept."""

from __future__ import annotations

import json
import logging
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trimtab.engines.checkpoint import Policy, save_policy
from trimtab.records import StoppedByRule
from trimtab.rollout.launch import WorkerProcess
from trimtab.rollout.messages import Broken, Evaluate, Evaluated
from trimtab.runtime.session import Session
from trimtab.store.durable import write_atomic
from trimtab.store.jsonl import read_jsonl
from trimtab.store.run_folder import EVALUATION, RunFolder
from trimtab.telemetry.held_out import HeldOut

log = logging.getLogger(__name__)

DRAIN_S = 600.0  # at the end of a run, the next answer is waited for this long
LOOK_S = 0.5  # how often one looks meanwhile whether the run shall stop
_NAME = re.compile(r"(\d+)-(\d+)")  # a folder: the batch and the version
AT_ONCE = 4  # questions that may be open; what comes due meanwhile is left out, so that a slow evaluator fills no disk


class Evaluations:
    """Saves the model of the version to be evaluated, asks the evaluator's process, takes answers as they come.

    One process, started at the first evaluation; a new question waits in its socket while an older one is being answered. A process
    that dies is replaced ``restarts`` times in all, and asked again. What is unanswered when a run ends early lies in ``eval/``, and
    is asked again when the run goes on.
    """

    def __init__(self, session: Session, policy: Policy, launch: Callable[[], WorkerProcess], restarts: int) -> None:
        self._session, self._policy, self._launch, self._restarts = session, policy, launch, restarts
        self._options = session.config.eval
        self._folder = session.folder.path / "eval"
        self._process: WorkerProcess | None = None
        self._pending: dict[int, Evaluate] = {}  # by batch
        self._recover()

    def after_batch(self) -> None:
        """Ask where an evaluation is due; record what has been answered."""
        consumed = self._session.consumed
        if self._options.every and consumed % self._options.every == 0 and consumed < self._session.config.learner.batches:
            if len(self._pending) < AT_ONCE:
                self._ask(consumed)
            else:
                log.warning("no evaluation after batch %d: %d are still to be answered; raise eval.every", consumed, AT_ONCE)
        self._take(0.0)

    def finish(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Wait for what is pending; what is still pending when ``stopping`` is asked again by a resume."""
        since = time.monotonic()
        while self._pending and not stopping():
            if self._take(LOOK_S):
                since = time.monotonic()
            elif time.monotonic() - since > DRAIN_S:
                raise StoppedByRule(f"eval: no answer from the evaluator for {DRAIN_S:g} s; see run.log in the run folder")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
        with suppress(OSError):  # not there, or not empty
            self._folder.rmdir()

    def _recover(self) -> None:
        """Ask again what an earlier life of this run was not answered; forget what it asked beyond the checkpoint."""
        answered = {row.get("batch") for row in read_jsonl(self._session.folder.eval) if row.get("when") == "during"}
        for folder in sorted(self._folder.iterdir()) if self._folder.is_dir() else []:
            named = _NAME.fullmatch(folder.name) if folder.is_dir() else None
            if named is None:
                log.warning("%s is none of ours and is left alone", folder)
            elif int(named[1]) <= self._session.consumed and int(named[1]) not in answered:
                self._put(int(named[1]), int(named[2]), folder)
            else:
                shutil.rmtree(folder)

    def _ask(self, batch: int) -> None:
        with self._session.clock.span("eval"):
            version = self._session.version.number
            folder = self._folder / f"{batch:06d}-{version:06d}"
            save_policy(self._policy.model, self._policy.tokenizer, folder)
            self._put(batch, version, folder)

    def _put(self, batch: int, version: int, folder: Path) -> None:
        self._pending[batch] = Evaluate(batch, version, str(folder), self._options)
        if self._process is None:
            self._start()
        else:
            self._send(self._pending[batch])

    def _start(self) -> None:
        self._process = self._launch()
        for question in self._pending.values():
            self._send(question)

    def _send(self, question: Evaluate) -> None:
        assert self._process is not None
        try:
            self._process.send(question)
        except OSError:
            self._process.interrupt()  # the next take finds it dead

    def _take(self, seconds: float) -> bool:
        """Record what has been answered; waits up to ``seconds`` for the first message. True if there was one."""
        if self._process is None:
            return False
        heard = False
        try:
            for message in self._process.messages(seconds):
                heard = True
                if isinstance(message, Broken):
                    if message.exit_code:
                        raise message.error("eval")
                    self._replace(message.reason)
                    break
                if isinstance(message, Evaluated):
                    self._record(message)
        except (EOFError, OSError):
            self._replace("")
            heard = True
        return heard

    def _replace(self, why: str) -> None:
        assert self._process is not None
        ended = self._process.end()
        if not self._restarts:
            raise StoppedByRule(f"eval: the evaluator died ({why or ended}), restarts used up; see run.log in the run folder")
        self._restarts -= 1
        log.warning("the evaluator died (%s); another is asked again", why or ended)
        self._start()

    def _record(self, e: Evaluated) -> None:
        self._session.evaluated("during", e.batch, e.found, e.seconds)
        folder = Path(self._pending.pop(e.batch).folder)
        best = best_of(self._session.folder)
        if self._options.keep_best and not e.found.doubtful and (best is None or self._value(e.found) >= self._value(best[1])):
            write_atomic(folder / EVALUATION, (json.dumps({"batch": e.batch} | e.found.to_json(), indent=1) + "\n").encode())
            target = self._session.folder.best
            shutil.rmtree(target, ignore_errors=True)
            folder.rename(target)
        else:
            shutil.rmtree(folder, ignore_errors=True)

    def _value(self, found: HeldOut) -> float:
        return (found.score if self._options.best_by == "score" else found.accuracy).mean


def best_of(folder: RunFolder) -> tuple[int, HeldOut] | None:
    """The batches that the model in ``best/`` has seen and its evaluation; None where there is none."""
    row = folder.evaluation_of_best()
    found = None if row is None else HeldOut.from_json(row)
    return None if row is None or found is None else (int(str(row["batch"])), found)
