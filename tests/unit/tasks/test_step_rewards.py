"""Step-level rewards in a verdict: what is junk, and what a shift may be."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from trimtab.records import Outcome
from trimtab.tasks.protocol import Prompt, Step, Verdict
from trimtab.tasks.shaping import ShapingOptions
from trimtab.tasks.verifier_process import judge


class Says:
    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def score(self, prompt: Prompt, response: str) -> Verdict:
        return self.verdict


@pytest.mark.parametrize(
    ("reward", "steps", "detail"),
    [
        (float("nan"), None, "the reward is nan"),
        (1.0, (Step(1.0),), "the verdict has a reward and steps: give one of them, the steps sum to the reward"),
        (None, (Step(float("inf"), 1),), "the reward of a step is inf"),
        (None, (Step(1.0, 4),), "a step ends at character 4 of turn 0: the response is turn 0, with 3 characters"),
        (None, (Step(1.0, 0),), "a step ends at character 0 of turn 0: the response is turn 0, with 3 characters"),
        (None, (Step(1.0, 1, turn=1),), "a step ends at character 1 of turn 1: the response is turn 0, with 3 characters"),
        (None, (Step(1.0, "2"),), "TypeError: '<=' not supported between instances of 'int' and 'str'"),  # type: ignore[arg-type]
        ("much", None, "the reward is 'much', not a number"),
    ],
)
def test_junk_is_an_error(reward: float | None, steps: tuple[Step, ...] | None, detail: str) -> None:
    prompt = Prompt(row=0, text="", answer="", source="", data={})
    verdict = judge(Says(Verdict(score=1.0, outcome=Outcome.CORRECT, reward=reward, steps=steps)), prompt, "abc")
    assert (verdict.outcome, verdict.detail, verdict.reward, verdict.steps) == (Outcome.ERROR, detail, None, None)


@pytest.mark.parametrize("steps", [(Step(1.0),), (Step(1.0, 3), Step(-0.5, 1)), ()])
def test_what_is_no_junk(steps: tuple[Step, ...]) -> None:
    verdict = Verdict(score=0.0, outcome=Outcome.WRONG, steps=steps)
    assert judge(Says(verdict), Prompt(row=0, text="", answer="", source="", data={}), "abc").steps == steps


@pytest.mark.parametrize(
    "shaping", [{"scale": 0.0}, {"scale": -1.0}, {"offset": float("inf")}, {"scale": float("nan")}, {"kind": "dense"}, {"kind": "local"}]
)
def test_a_shift_is_finite_and_keeps_the_order(shaping: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ShapingOptions.model_validate(shaping)
