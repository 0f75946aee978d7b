"""What a task is: rows of prompts, and a scorer that runs in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from trimtab.records import Json, Outcome

LARGEST = 1e6  # a score or reward: its square, summed over a batch, is far from the end of float32, and two such still differ by 1/16


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One row of a task's data. ``text`` is rendered; ``messages`` (if any) go through the model's chat template.

    ``place``: where a person finds it, such as a line of a file.
    """

    row: int
    text: str
    answer: str
    source: str
    data: Mapping[str, Json]
    messages: tuple[Mapping[str, str], ...] = ()
    place: str = ""

    @property
    def named(self) -> str:
        """What a message calls it."""
        return self.place or f"row {self.row}"


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the reward and the place where it is earned: once the first ``end`` characters of the response are there.

    None is the end of the turn. ``turn`` counts the policy's turns from 0; ``end`` counts within the text of that turn.
    """

    reward: float
    end: int | None = None
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a scorer found about one response.

    ``score`` is the verifiable score that filters and evaluations use. ``reward`` is what credit is assigned by where that is
    something else; ``steps`` is the same taken apart by place (none: a reward of 0). A verdict has one of the two, or neither.
    All of them are finite, and at most ``LARGEST`` in size. ``trace`` is the traceback of an error, where there is one.
    """

    score: float
    outcome: Outcome
    detail: str = ""
    seconds: float = 0.0
    reward: float | None = None
    steps: tuple[Step, ...] | None = None
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """Training rows of one file. ``weight``: of the prompts drawn, the share weight / sum of weights; None: every row once an epoch."""

    name: str
    rows: int
    weight: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRead:
    """What a task was made from. ``digests``: of each file, or of what stands for one, as (its name, its digest) by the field that
    names it; ``parts``: the training rows, in order; ``notes``: what a person should know about it. ``stored``: rows are read, not made
    up when asked for, so each can be looked at.
    """

    digests: Mapping[str, tuple[str, str]]
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()
    stored: bool = False


class Task(Protocol):
    """Prompts by row. Training and evaluation rows never coincide."""

    name: str
    eval_size: int  # number of evaluation rows
    data: DataRead

    def __len__(self) -> int: ...
    def prompt(self, row: int) -> Prompt: ...
    def eval_prompt(self, row: int) -> Prompt: ...


class Scorer(Protocol):
    """Runs in the verifier process: may hang, raise or return junk; the process around it decides what that means."""

    def score(self, prompt: Prompt, response: str) -> Verdict: ...
