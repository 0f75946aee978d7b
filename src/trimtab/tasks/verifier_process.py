"""The process that runs a scorer: ``python -m trimtab.tasks.verifier_process CONNECTION`` (a file descriptor), under a lifeline.

It loads the scorer, answers ``None`` (ready) or a sentence (why not), then takes lists of (prompt, response) and answers each
with a tuple (score, outcome, detail, seconds) as soon as it is known: the first call without an answer is the one that hangs.
The deadline is kept by the parent (``verifier.py``). Imports no torch.
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from multiprocessing.connection import Connection
from typing import Protocol

from trimtab.records import Outcome, TrimtabError
from trimtab.tasks.protocol import Prompt, Scorer, Verdict

Answer = tuple[float, str, str, float]
_DETAIL = 500  # characters of an error that are kept


class ScorerSpec(Protocol):
    """What is sent to the process: picklable, names the scorer, loads it there."""

    @property
    def name(self) -> str: ...
    def build(self) -> Scorer: ...


def judge(scorer: Scorer, prompt: Prompt, response: str) -> Verdict:
    """The scorer's verdict; an exception or a score that is no finite number is ``Outcome.ERROR`` with score NaN, never a zero."""
    start = time.perf_counter()
    try:
        verdict = scorer.score(prompt, response)
        if not math.isfinite(verdict.score):
            verdict = Verdict(score=math.nan, outcome=Outcome.ERROR, detail=f"the score is {verdict.score}")
        elif verdict.outcome is Outcome.ERROR:
            verdict = Verdict(score=math.nan, outcome=Outcome.ERROR, detail=verdict.detail)
    except BaseException as error:  # noqa: BLE001 - whatever a scorer does (sys.exit included) is data about this response
        verdict = Verdict(score=math.nan, outcome=Outcome.ERROR, detail=describe(error))
    return Verdict(
        score=float(verdict.score), outcome=verdict.outcome, detail=verdict.detail[:_DETAIL], seconds=time.perf_counter() - start
    )


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
            answer: Answer = (v.score, v.outcome.value, v.detail, v.seconds)
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
