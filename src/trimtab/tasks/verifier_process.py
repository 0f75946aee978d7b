"""The process that runs a scorer: ``python -m trimtab.tasks.verifier_process CONNECTION`` (a file descriptor), under a lifeline.

It loads the scorer, answers ``None`` (ready) or a sentence (why not), then takes lists of (prompt, response) and answers each
with an ``Answer`` as soon as it is known: the first call without an answer is the one that hangs. The deadline is kept by the
parent (``verifier.py``). Imports no torch.
"""

from __future__ import annotations

import math
import os
import reprlib
import resource
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol

from trimtab.records import Outcome, TrimtabError
from trimtab.tasks.faults import DETAIL, describe, trace_of
from trimtab.tasks.protocol import LARGEST, Prompt, Scorer, Verdict

# score, outcome, detail, seconds, reward, (reward, end, turn) of each step, and the traceback
Answer = tuple[float, str, str, float, float | None, tuple[tuple[float, int | None, int], ...] | None, str]


class Start(NamedTuple):
    """What the parent sends first: what to load, seconds for a response and for the first one, memory it may take."""

    spec: ScorerSpec
    deadline_s: float
    first_s: float
    memory_gib: float | None


class ScorerSpec(Protocol):
    """What is sent to the process: picklable, names the scorer, loads it there."""

    @property
    def name(self) -> str: ...
    def build(self) -> Scorer: ...


def judge(scorer: Scorer, prompt: Prompt, response: str) -> Verdict:
    """The scorer's verdict; an exception or junk is ``Outcome.ERROR`` with score NaN, never a zero."""
    start = time.perf_counter()
    try:
        verdict = sound(scorer.score(prompt, response), response)
    except BaseException as error:  # noqa: BLE001 - whatever a scorer does (sys.exit included) is data about this response
        verdict = Verdict(score=math.nan, outcome=Outcome.ERROR, detail=describe(error), trace=trace_of(error))
    return replace(verdict, seconds=time.perf_counter() - start)


def sound(verdict: Verdict, response: str) -> Verdict:
    """The verdict with its numbers as floats, or an error that says what is wrong with it."""
    if not isinstance(verdict.outcome, Outcome):
        return _error(f"the outcome of the verdict is {reprlib.repr(verdict.outcome)}, not an Outcome")
    detail = str(verdict.detail)[:DETAIL]
    if verdict.outcome is Outcome.ERROR:
        return _error(detail or "the scorer calls it an error")
    wrong = _wrong(verdict, response)
    if wrong is not None:
        return _error(wrong)
    steps = None if verdict.steps is None else tuple(replace(s, reward=float(s.reward)) for s in verdict.steps)
    reward = None if verdict.reward is None else float(verdict.reward)
    return replace(verdict, score=float(verdict.score), reward=reward, steps=steps, detail=detail, trace="")


def _error(detail: str) -> Verdict:
    return Verdict(score=math.nan, outcome=Outcome.ERROR, detail=detail)


def _wrong(verdict: Verdict, response: str) -> str | None:
    """What is wrong with a verdict, if anything: numbers that are none or too large, steps that lie nowhere in the response."""
    if verdict.reward is not None and verdict.steps is not None:
        return "the verdict has a reward and steps: give one of them, the steps sum to the reward"
    steps = verdict.steps or ()
    named: list[tuple[str, object]] = [("the score", verdict.score)]
    named += [] if verdict.reward is None else [("the reward", verdict.reward)]
    named += [("the reward of a step", step.reward) for step in steps]
    for name, number in named:
        if (wrong := _no_reward(number)) is not None:
            return f"{name} is {wrong}"
    if (wrong := _no_reward(math.fsum(abs(step.reward) for step in steps))) is not None:
        return f"the sum of the steps is {wrong}"
    for step in steps:
        if step.turn != 0 or not (step.end is None or 1 <= step.end <= len(response)):
            return f"a step ends at character {step.end} of turn {step.turn}: the response is turn 0, with {len(response)} characters"
    return None


def _no_reward(number: object) -> str | None:
    """Why a number cannot be a reward, after "it is"; None where it can."""
    try:
        value = float(number)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return f"{reprlib.repr(number)}, not a number"
    if not math.isfinite(value):
        return str(value)
    return f"{value:g}, and rewards are at most {LARGEST:g} in size; scale it" if abs(value) > LARGEST else None


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


def serve(connection: Connection, scorer: Scorer, start: Start) -> None:
    """Score until the parent closes the connection."""
    seconds = start.first_s
    while True:
        calls: list[tuple[Prompt, str]] = connection.recv()
        for prompt, response in calls:
            limit_cpu(seconds)
            seconds = start.deadline_s
            v = judge(scorer, prompt, response)
            steps = None if v.steps is None else tuple((s.reward, s.end, s.turn) for s in v.steps)
            answer: Answer = (v.score, v.outcome.value, v.detail, v.seconds, v.reward, steps, v.trace)
            connection.send(answer)


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    try:
        start: Start = connection.recv()
        scorer = start.spec.build()
        if start.memory_gib is not None:
            limit_memory(start.memory_gib)
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
        serve(connection, scorer, start)
    except (EOFError, OSError):  # the parent closed the connection, or we are such a child
        return


if __name__ == "__main__":
    main()
