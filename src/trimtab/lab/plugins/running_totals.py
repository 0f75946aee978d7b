"""A step-level reward for chained sums: every running total that is right given the one the response says before it.

``4 + 7 - 1`` asks for the totals 11 and 10. The response ``12,11`` gets the first wrong and the second right, 12 - 1 = 11: what is
learned at each total is one addition, whatever went wrong before. Each right total earns 1 / (number of totals) at its last digit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Literal, cast

from pydantic import BaseModel, Field

from trimtab.records import Json
from trimtab.tasks.options import ReasoningGymOptions
from trimtab.tasks.protocol import Prompt, Step
from trimtab.tasks.shaping import ShapingOptions

_TERM = re.compile(r"[+-]?[0-9]+")
_TOTAL = re.compile(r"[+-]?[0-9]{1,18}")


class LocalShaping(ShapingOptions):
    """``task.shaping.kind = "local"``, for ``chain_sum``: each running total that is right given the one before it, where it stands."""

    stepwise = True

    kind: Literal["local"] = Field("local", description="each running total of chain_sum that is right given the one before it")  # type: ignore[assignment]

    def check(self, task: BaseModel) -> None:
        if not isinstance(task, ReasoningGymOptions):
            remedy = "a reward function returns a Verdict with steps"
            raise ValueError(f'task.shaping.kind = "local" is for chain_sum of reasoning_gym; {remedy}')
        if separator_of(task) is None:
            raise ValueError(
                'task.shaping.kind = "local" reads running totals: it needs task.name = "chain_sum" and task.answer_after, '
                "the text between two totals"
            )

    def steps(self, task: BaseModel, prompt: Prompt, response: str) -> tuple[Step, ...]:
        separator = separator_of(task)
        assert separator is not None
        expression = str(cast(Mapping[str, Json], prompt.data["metadata"])["expression"])
        return local_steps(expression, response, separator)


def separator_of(task: BaseModel) -> str | None:
    """The text between two running totals that responses to this task say; None: they say none, or nothing stands between them."""
    return task.answer_after if isinstance(task, ReasoningGymOptions) and task.name == "chain_sum" else None


def right_response(expression: str, separator: str) -> str:
    """The totals of ``expression`` (terms and operators, with or without blanks) as a response without a mistake says them."""
    _, *totals = accumulate(int(term) for term in _TERM.findall("".join(expression.split())))
    return separator.join(map(str, totals))


def local_steps(expression: str, response: str, separator: str) -> tuple[Step, ...]:
    """The steps of ``response``, totals between ``separator``, to the sum ``expression`` (terms and operators between blanks).

    A piece that is no number is wrong, and so is the total after it. Totals beyond the last one that is asked for earn nothing.
    """
    first, *rest = expression.split()
    operators, terms = rest[::2], rest[1::2]
    before: int | None = int(first)
    steps = []
    begin = 0
    for operator, term, piece in zip(operators, terms, response.split(separator), strict=False):
        total = int(piece) if _TOTAL.fullmatch(piece.strip()) else None
        if before is not None and total is not None and total == before + (int(term) if operator == "+" else -int(term)):
            steps.append(Step(reward=1 / len(terms), end=begin + len(piece.rstrip())))
        before = total
        begin += len(piece) + len(separator)
    return tuple(steps)
