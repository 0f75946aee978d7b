"""Scripted demonstrations for warm starts: prompts as the task renders them, responses by a competent but sloppy hand.

``q`` is the probability that a step goes wrong: a running total, a sign, a number. A source says in its docstring which task
options its prompts belong to.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Demonstration = tuple[str, str]  # prompt, response


@dataclass(frozen=True, slots=True)
class Source:
    """``characters``: one token each, in the order of their ids."""

    characters: str
    draw: Callable[[random.Random, float], Demonstration]


TERMS = 8
LARGEST_ERROR = 3


def chain_sum(rng: random.Random, q: float) -> Demonstration:
    """``4+7-1+...=`` and its running totals ``11,10,...``; a wrong total is off by 1 to 3, and the error is carried on.

    ``chain_sum`` of 8 one-digit terms, template ``{expression}=``, compact.
    """
    terms = [rng.randint(0, 9) for _ in range(TERMS)]
    operators = [rng.choice("+-") for _ in range(TERMS - 1)]
    prompt, total, totals = str(terms[0]), terms[0], []
    for operator, term in zip(operators, terms[1:], strict=True):
        prompt += f"{operator}{term}"
        total += term if operator == "+" else -term
        if rng.random() < q:
            total += rng.choice([e for e in range(-LARGEST_ERROR, LARGEST_ERROR + 1) if e])
        totals.append(str(total))
    return f"{prompt}=", ",".join(totals)


NUMBERS = 4


def countdown(rng: random.Random, q: float) -> Demonstration:
    """``[8,3,4,2]=7:`` and ``8-3+4-2``: the numbers with signs that make the target; a wrong sign is the other one.

    ``countdown`` of 4 numbers from 1 to 9, + and -, targets from 1 to 36, unshuffled; template ``{numbers}={target}:``, compact.
    """
    while True:
        numbers = [rng.randint(1, 9) for _ in range(NUMBERS)]
        signs = [rng.choice((1, -1)) for _ in range(NUMBERS - 1)]
        target = numbers[0] + sum(s * n for s, n in zip(signs, numbers[1:], strict=True))
        if target > 0:
            break
    said = [-s if rng.random() < q else s for s in signs]
    response = str(numbers[0]) + "".join(f"{'+' if s > 0 else '-'}{n}" for s, n in zip(said, numbers[1:], strict=True))
    return f"[{','.join(map(str, numbers))}]={target}:", response


SORTED = 8


def number_sorting(rng: random.Random, q: float) -> Demonstration:
    """``descending['3.0',...]=`` and ``[9,7,...]``; a wrong number is off by 2 or 3, since the family's scorer forgives 1.

    ``number_sorting`` of 8 numbers from 0 to 9 without decimals; template ``{direction}{original_numbers}=``, compact.
    """
    numbers = [round(rng.uniform(0, 9)) for _ in range(SORTED)]
    direction = rng.choice(("ascending", "descending"))
    said = sorted(numbers, reverse=direction == "descending")
    said = [rng.choice([m for m in range(10) if 2 <= abs(m - n) <= 3]) if rng.random() < q else n for n in said]
    shown = ",".join(f"'{n}.0'" for n in numbers)
    return f"{direction}[{shown}]=", f"[{','.join(map(str, said))}]"


SOURCES: Mapping[str, Source] = {
    "chain_sum": Source("0123456789+-=,", chain_sum),
    "countdown": Source("0123456789+-=,[]:", countdown),
    "number_sorting": Source("0123456789.',[]=acdegins", number_sorting),
}
