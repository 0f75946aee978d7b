"""What a task is: rows of prompts, and a scorer that runs in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from trimtab.records import Json, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One row of a task's data. ``text`` is rendered; ``messages`` (if any) go through the model's chat template."""

    row: int
    text: str
    answer: str
    source: str
    data: Mapping[str, Json]
    messages: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a scorer found about one response."""

    score: float
    outcome: Outcome
    detail: str = ""
    seconds: float = 0.0


class Task(Protocol):
    """Prompts by row. Training and evaluation rows never coincide."""

    name: str
    eval_size: int  # number of evaluation rows

    def __len__(self) -> int: ...
    def prompt(self, row: int) -> Prompt: ...
    def eval_prompt(self, row: int) -> Prompt: ...


class Scorer(Protocol):
    """Runs in the verifier process: may hang, raise or return junk; the process around it decides what that means."""

    def score(self, prompt: Prompt, response: str) -> Verdict: ...
