"""The verifier: scorers in killable processes, the deadline outside them.

========================  ==============================================================  =====================================
what happens              what the response gets                                          what else
========================  ==============================================================  =====================================
a verdict                 the verdict
exception, NaN, junk      ``ERROR``, score NaN: the rollout leaves its group, it is       its traceback is logged, once a kind
                          never a zero
deadline passes           ``TIMEOUT``, score NaN, so likewise; under                      process killed and replaced; the rest
                          ``timeout = "zero"`` score 0                                    of its calls is scored by the next
process dies              ``ERROR`` (``TIMEOUT`` if it used up its CPU time)              likewise
``max_failures`` in a row                                                                 StoppedByRule: scorer and last error
scorer does not load                                                                      TrimtabError: the reason; of a
                                                                                          replacement a fault, so another is
                                                                                          started, ``RELOADS`` times in a row
========================  ==============================================================  =====================================

A process runs in a cage (:mod:`~trimtab.tasks.cage`): what it starts ends with it, what it prints is kept to its end.
The first response of a process has a deadline of its own: a scorer that imports what it needs when it is first used is slow once.

Passive and single-threaded: things move in ``poll``. Usable from any thread, by one thread at a time. The deadline of a call runs
from the moment the parent knows it has begun, so a caller that polls rarely waits longer, and never kills early.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Set
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from multiprocessing.connection import wait
from typing import Self

from trimtab.records import Outcome, StoppedByRule, TrimtabError
from trimtab.tasks.child import Child
from trimtab.tasks.faults import FaultLog
from trimtab.tasks.isolation import Isolation
from trimtab.tasks.options import VerifierOptions
from trimtab.tasks.printed import PrintedLog, Ring, readable
from trimtab.tasks.protocol import Prompt, Step, Verdict
from trimtab.tasks.verifier_process import Answer, ScorerSpec, Start

log = logging.getLogger(__name__)

BATCH = 64  # calls sent to a process at once
CAGE = "trimtab.tasks.cage"
CAGE_S = 10.0  # longest wait for a cage to end
LAST_LINE = 300  # characters of it in a sentence
RELOADS = 5  # replacements in a row that may fail to load


def _verdict(answer: Answer) -> Verdict:
    score, outcome, detail, seconds, reward, steps, trace = answer
    located = None if steps is None else tuple(Step(*step) for step in steps)
    return Verdict(score=score, outcome=Outcome(outcome), detail=detail, seconds=seconds, reward=reward, steps=located, trace=trace)


class _Call:
    __slots__ = ("cancelled", "key", "prompt", "response")

    def __init__(self, key: int, prompt: Prompt, response: str) -> None:
        self.key, self.prompt, self.response, self.cancelled = key, prompt, response, False


class _Process(Child):
    """One scorer process: ``calls`` are sent and not yet answered, the first of them is running since ``since``."""

    def __init__(self, spec: ScorerSpec, options: VerifierOptions) -> None:
        first = Start(spec, options.deadline_s, options.first_s, options.memory_gib)
        ring = Ring.create()
        try:
            super().__init__(
                "trimtab.tasks.verifier_process",
                first,
                patience_s=math.ceil(options.first_s),
                threads=1,
                launcher=CAGE,
                launcher_fds=[ring],
                launcher_words=[str(int(options.isolate))],
            )
            self.printed = Ring(ring)
        finally:
            os.close(ring)
        self.calls: deque[_Call] = deque()
        self.ready = False
        self.answered = False
        self.since = time.monotonic()

    def kill(self) -> int:
        """End the cage by its lifeline, so that it has the time to end what is in it."""
        self._held.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(CAGE_S)
        return super().kill()

    def send(self, calls: list[_Call]) -> None:
        self.calls.extend(calls)
        self.since = time.monotonic()
        self.connection.send([(c.prompt, c.response) for c in calls])


class Verifier:
    """Scores responses in ``options.workers`` processes that run the scorer of ``spec``."""

    def __init__(self, options: VerifierOptions, spec: ScorerSpec) -> None:
        self._options, self._spec = options, spec
        self._queue: deque[_Call] = deque()
        self._failures = 0  # in a row
        self._loaded = False  # some process has loaded the scorer: one that cannot is a fault of the moment
        self._reloads = 0  # replacements that failed to load, in a row
        self._faults, self._printed = FaultLog(spec.name), PrintedLog(spec.name)
        self._pending = 0
        self._processes: list[_Process] = []
        try:
            for _ in range(options.workers):
                self._processes.append(_Process(spec, options))
        except BaseException:
            self.close()
            raise

    @property
    def pending(self) -> int:
        """Responses submitted whose verdicts ``poll`` has not returned."""
        return self._pending

    @property
    def isolation(self) -> Isolation:
        """How far the scorer's processes are kept from ours; known once they are ready."""
        return min(p.printed.isolation for p in self._processes)

    def submit(self, key: int, prompt: Prompt, response: str) -> None:
        """Queue a response; its verdict comes from ``poll`` under ``key``."""
        self._queue.append(_Call(key, prompt, response))
        self._pending += 1

    def ready(self) -> None:
        """Wait until every process has loaded the scorer. Raises TrimtabError with the reason where it does not."""
        while starting := [p for p in self._processes if not p.ready]:
            wait([p.connection for p in starting], timeout=0.5)
            for process in starting:
                self._receive(process, [])

    def poll(self, block: float = 0.0) -> list[tuple[int, Verdict]]:
        """Verdicts that have come in; waits up to ``block`` seconds for one if none has. Raises as the table above says."""
        until = time.monotonic() + block
        done: list[tuple[int, Verdict]] = []
        while True:
            for process in list(self._processes):
                self._receive(process, done)
            for process in self._processes:
                self._printed.look(process.printed)
            self._dispatch()
            now = time.monotonic()
            if done or not self._pending or now >= until:
                return done
            wait([p.connection for p in self._processes], timeout=min(until - now, self._options.deadline_s / 4))

    def cancel(self, keys: Set[int]) -> None:
        """Forget responses that are pending: no verdict of them will come."""
        for call in chain(self._queue, *(p.calls for p in self._processes)):
            if call.key in keys and not call.cancelled:
                call.cancelled = True
                self._pending -= 1
        self._queue = deque(call for call in self._queue if not call.cancelled)

    def close(self) -> None:
        """Kill every process. What is pending is dropped."""
        self._faults.sum_up()
        while self._processes:
            self._kill(self._processes.pop())
        self._queue.clear()
        self._pending = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _dispatch(self) -> None:
        idle = [p for p in self._processes if p.ready and not p.calls]
        for left, process in zip(range(len(idle), 0, -1), idle, strict=True):
            share = min(BATCH, math.ceil(len(self._queue) / left))
            if share:
                with suppress(OSError):  # died meanwhile; the next receive says so
                    process.send([self._queue.popleft() for _ in range(share)])

    def _receive(self, process: _Process, done: list[tuple[int, Verdict]]) -> None:
        """Take in what the process has to say; replace it if it died or its running call is overdue."""
        try:
            while process.has_message():
                message: str | Answer | None = process.connection.recv()
                process.since = time.monotonic()
                if isinstance(message, tuple):
                    process.answered = True
                    self._verdict(process.calls.popleft(), _verdict(message), done)
                elif message is None:
                    self._ready(process)
                else:
                    self._not_loaded(process, TrimtabError(message))
                    return
        except (EOFError, OSError):
            self._died(process, self._kill(process), done)
            return
        options, waited = self._options, time.monotonic() - process.since
        if not process.ready and waited > options.start_s:
            why = f"{self._spec.name} has not loaded in {waited:.0f} s; raise it"
            self._not_loaded(process, TrimtabError.field("verifier.start_s", options.start_s, why))
        elif process.calls and waited > (options.deadline_s if process.answered else options.first_s):
            self._kill(process)
            self._fail(process, Outcome.TIMEOUT, self._overdue(process), done)

    def _ready(self, process: _Process) -> None:
        if not self._loaded and self._options.isolate and process.printed.isolation is not Isolation.NAMESPACE:
            log.info("scorer %s: no process namespace can be had here, so a reward could signal the processes of the run", self._spec.name)
        process.ready = self._loaded = True
        self._reloads = 0

    def _kill(self, process: _Process) -> int:
        code = process.kill()
        self._printed.look(process.printed, last=True)
        return code

    def _overdue(self, process: _Process) -> str:
        if process.answered:
            return f"no verdict within {self._options.deadline_s:g} s"
        return f"no verdict within {self._options.first_s:g} s, on the first response of a process"

    def _died(self, process: _Process, code: int, done: list[tuple[int, Verdict]]) -> None:
        if not process.ready:
            last = readable(process.printed.since(0)).strip().rpartition("\n")[2][-LAST_LINE:]
            said = f", and the last it printed is: {last}" if last else ""
            why = f"the process of scorer {self._spec.name} ended with code {code} before it was ready{said}"
            self._not_loaded(process, TrimtabError(why))
        elif code == -signal.SIGXCPU:
            self._fail(process, Outcome.TIMEOUT, "CPU time of the deadline used up", done)
        else:
            self._fail(process, Outcome.ERROR, f"the scorer's process ended with code {code}", done)

    def _not_loaded(self, process: _Process, error: TrimtabError) -> None:
        """Raise the error where the scorer has never loaded. It has: then this is a fault, and another process may do better."""
        if not self._loaded:
            raise error
        self._kill(process)
        self._reloads += 1
        if self._reloads >= RELOADS:
            raise StoppedByRule(f"scorer {self._spec.name} had loaded before, and now {RELOADS} processes in a row did not: {error}")
        log.warning("scorer %s: a new process does not load: %s; another is started", self._spec.name, error)
        self._count_failure(f"error: {error}")
        self._replace(process)

    def _fail(self, process: _Process, outcome: Outcome, detail: str, done: list[tuple[int, Verdict]]) -> None:
        """Blame the running call, put the others back at the head of the queue, start a new process."""
        if process.calls:
            call = process.calls.popleft()
            self._queue.extendleft(c for c in reversed(process.calls) if not c.cancelled)
            score = 0.0 if outcome is Outcome.TIMEOUT else math.nan
            self._verdict(call, Verdict(score=score, outcome=outcome, detail=detail, seconds=time.monotonic() - process.since), done)
        else:
            log.warning("scorer %s: %s while it was idle; it is replaced", self._spec.name, detail)
            self._count_failure(f"{outcome.value}: {detail}")
        self._replace(process)

    def _replace(self, process: _Process) -> None:
        self._processes[self._processes.index(process)] = _Process(self._spec, self._options)

    def _verdict(self, call: _Call, verdict: Verdict, done: list[tuple[int, Verdict]]) -> None:
        failed = verdict.outcome in (Outcome.ERROR, Outcome.TIMEOUT)
        if failed:
            self._faults.note(verdict)
        if verdict.outcome is Outcome.TIMEOUT and self._options.timeout == "error":  # also one that the scorer itself gives
            verdict = replace(verdict, score=math.nan, reward=None, steps=None)
        if not call.cancelled:
            done.append((call.key, verdict))
            self._pending -= 1
        if failed:
            self._count_failure(f"{verdict.outcome.value}: {verdict.detail}")
        else:
            self._failures = 0

    def _count_failure(self, why: str) -> None:
        self._failures += 1
        if self._failures >= self._options.max_failures:
            raise StoppedByRule(
                f"verifier.max_failures = {self._options.max_failures}: scorer {self._spec.name} failed that many times in a row, "
                f"the last with {why}; repair the scorer or raise the limit"
            )
