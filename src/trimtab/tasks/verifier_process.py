"""The process that runs a scorer: ``python -m trimtab.tasks.verifier_process CONNECTION`` (a file descriptor), under a lifeline.

It loads the scorer, answers ``None`` (ready) or a sentence (why not), then takes lists of (prompt, response) and answers each
with an ``Answer`` as soon as it is known: the first call without an answer is the one that hangs. The deadline is kept by the
parent (``verifier.py``). Imports no torch.
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Protocol

from trimtab.records import Outcome, TrimtabError
from trimtab.tasks.protocol import Prompt, Scorer, Verdict

# score, outcome, detail, seconds, reward, and (reward, end, turn) of each step
Answer = tuple[float, str, str, float, float | None, tuple[tuple[float, int | None, int], ...] | None]
_DETAIL = 500  # characters of an error that are kept


class ScorerSpec(Protocol):
    """What is sent to the process: picklable, names the scorer, loads it there."""

    @property
    def name(self) -> str: ...
    def build(self) -> Scorer: ...


def judge(scorer: Scorer, prompt: Prompt, response: str) -> Verdict:
    """The scorer's verdict; an exception or junk is ``Outcome.ERROR`` with score NaN, never a zero."""
    start = time.perf_counter()
    try:
        verdict = scorer.score(prompt, response)
        junk = verdict.detail if verdict.outcome is Outcome.ERROR else _junk(verdict, response)
        if junk is not None:
            verdict = Verdict(score=math.nan, outcome=Outcome.ERROR, detail=junk)
    except BaseException as error:  # noqa: BLE001 - whatever a scorer does (sys.exit included) is data about this response
        verdict = Verdict(score=math.nan, outcome=Outcome.ERROR, detail=describe(error))
    return replace(verdict, score=float(verdict.score), detail=verdict.detail[:_DETAIL], seconds=time.perf_counter() - start)


def _junk(verdict: Verdict, response: str) -> str | None:
    """What is wrong with a verdict, if anything: numbers that are not finite, steps that lie nowhere in the response."""
    if not math.isfinite(verdict.score):
        return f"the score is {verdict.score}"
    if verdict.reward is not None and verdict.steps is not None:
        return "the verdict has a reward and steps: give one of them, the steps sum to the reward"
    if verdict.reward is not None and not math.isfinite(verdict.reward):
        return f"the reward is {verdict.reward}"
    for step in verdict.steps or ():
        if not math.isfinite(step.reward):
            return f"the reward of a step is {step.reward}"
        if step.turn != 0 or not (step.end is None or 1 <= step.end <= len(response)):
            return f"a step ends at character {step.end} of turn {step.turn}: the response is turn 0, with {len(response)} characters"
    return None


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_DETAIL]


def limit_memory(gib: float) -> None:
    """Cap the address space at what is mapped now plus ``gib``; a scorer that wants more sees MemoryError."""
    try:
        with open("/proc/self/statm") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:  # no procfs, and there RLIMIT_AS is not enforced either
        return
    _set_soft(resource.RLIMIT_AS, mapped + int(gib * 2**30))


def limit_cpu(seconds: float) -> None:
    """Cap the CPU time from here at what ``seconds`` of wall time can use: the deadline also holds while nobody polls."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _set_soft(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + seconds * (os.cpu_count() or 1)) + 1)


def _set_soft(what: int, soft: int) -> None:
    hard = resource.getrlimit(what)[1]
    if hard == resource.RLIM_INFINITY or soft <= hard:
        resource.setrlimit(what, (soft, hard))


def serve(connection: Connection, scorer: Scorer, deadline_s: float) -> None:
    """Score until the parent closes the connection."""
    while True:
        calls: list[tuple[Prompt, str]] = connection.recv()
        for prompt, response in calls:
            limit_cpu(deadline_s)
            v = judge(scorer, prompt, response)
            steps = None if v.steps is None else tuple((s.reward, s.end, s.turn) for s in v.steps)
            answer: Answer = (v.score, v.outcome.value, v.detail, v.seconds, v.reward, steps)
            connection.send(answer)


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    try:
        spec, deadline_s, memory_gib = connection.recv()
        scorer = spec.build()
        if memory_gib is not None:
            limit_memory(memory_gib)
    except EOFError:
        return
    except TrimtabError as error:
        connection.send(str(error))
        return
    except BaseException as error:  # noqa: BLE001 - the parent raises it as the reason the scorer does not load
        connection.send(f"the scorer does not load ({describe(error)})")
        return
    # A child that a scorer forks must neither answer for us nor hide our death from the parent.
    os.register_at_fork(after_in_child=connection.close)
    connection.send(None)
    try:
        serve(connection, scorer, deadline_s)
    except (EOFError, OSError):  # the parent closed the connection, or we are such a child
        return


if __name__ == "__main__":
    main()
