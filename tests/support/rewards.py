"""Reward functions of the tests' runs; loaded in the verifier's process, so this module imports next to nothing."""

import time

from trimtab.records import Json, Outcome
from trimtab.tasks.protocol import Step, Verdict


def digit(prompt: str, response: str, answer: str, data: dict[str, Json]) -> float:
    """1 for a response with the digit 1 in it: a random policy finds some, so that groups are mixed from the first batch on."""
    return float("1" in response)


def one(prompt: str, response: str) -> float:
    """The same, as the examples have it: of prompt and response alone."""
    return digit(prompt, response, "", {})


def digits(prompt: str, response: str, answer: str, data: dict[str, Json]) -> Verdict:
    """The same score; every digit 1 earns a third where it stands."""
    steps = tuple(Step(1 / 3, i + 1) for i, character in enumerate(response) if character == "1")
    return Verdict(score=float(bool(steps)), outcome=Outcome.CORRECT if steps else Outcome.WRONG, steps=steps)


def slow_digit(prompt: str, response: str, answer: str, data: dict[str, Json]) -> float:
    """The same after a moment that depends on the response, so that verdicts come in bursts, long after the engine is done."""
    time.sleep(0.02 * (len(response) % 3 == 0))
    return digit(prompt, response, answer, data)


def broken(prompt: str, response: str, answer: str, data: dict[str, Json]) -> float:
    """A reward that scores nothing."""
    raise ValueError("never")


def graded(prompt: str, response: str, answer: str, data: dict[str, Json]) -> float:
    """Between 0 and 0.9: never what counts as correct."""
    return 0.9 * sum(character in "0123456789" for character in response) / max(1, len(response))


def fails_held_out(prompt: str, response: str, answer: str, data: dict[str, Json]) -> float:
    """1, but for most of the held-out prompts of ``support.runs``, which raise, and one that hangs beyond the deadline."""
    if prompt.endswith("-2="):
        if prompt.startswith("0"):
            return 1.0
        if prompt.startswith("3"):
            time.sleep(60)
        raise KeyError("the judge is down")
    return digit(prompt, response, answer, data)
