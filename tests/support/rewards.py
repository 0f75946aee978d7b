"""Reward functions of the tests' runs; loaded in the verifier's process, so this module imports next to nothing."""

from trimtab.records import Json


def digit(prompt: str, response: str, answer: str, data: dict[str, Json]) -> float:
    """1 for a response with the digit 1 in it: a random policy finds some, so that groups are mixed from the first batch on."""
    return float("1" in response)
