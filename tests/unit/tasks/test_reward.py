"""Reward functions by name: what they may return, and what is said when they cannot be had."""

import math
from pathlib import Path

import pytest

from trimtab.records import Outcome, TrimtabError
from trimtab.tasks.load import scorer_spec
from trimtab.tasks.options import JsonlOptions, VerifierOptions
from trimtab.tasks.protocol import Prompt, Scorer
from trimtab.tasks.reward import FunctionScorer
from trimtab.tasks.verifier import Verifier
from trimtab.tasks.verifier_process import judge

PROMPT = Prompt(row=0, text="2+2=", answer="4", source="", data={"hint": "even"})

REWARDS = """
import math
from trimtab.records import Outcome
from trimtab.tasks.protocol import Step, Verdict
seen = []
def returns(prompt, response, answer, data):
    seen.append((prompt, response, answer, data))
    return {"float": 0.25, "true": True, "one": 1, "pair": (0.5, "half way"), "named": (0.0, "unparseable"), "skip": (1.0, "error"),
            "verdict": Verdict(score=0.25, outcome=Outcome.CORRECT, steps=(Step(0.5, 3),)),
            "nan": math.nan, "inf": math.inf, "none": None, "text": "1.0x", "triple": (1, 2, 3)}[response]
def two(prompt, response): return 1.0
class Judge:
    @staticmethod
    def score(prompt, response, answer, data, extra=None): return response == answer
constant = 3
"""


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"rewards_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(REWARDS)
    (tmp_path / f"{name}_broken.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.fixture
def returns(rewards: str) -> Scorer:
    return FunctionScorer(f"{rewards}:returns", threshold=0.5).build()


@pytest.mark.parametrize(
    ("response", "score", "outcome", "detail"),
    [
        ("float", 0.25, Outcome.WRONG, ""),
        ("true", 1.0, Outcome.CORRECT, ""),
        ("one", 1.0, Outcome.CORRECT, ""),
        ("pair", 0.5, Outcome.CORRECT, "half way"),
        ("named", 0.0, Outcome.UNPARSEABLE, ""),
        ("verdict", 0.25, Outcome.CORRECT, ""),  # as it is, whatever the threshold
        ("skip", math.nan, Outcome.ERROR, ""),
        ("nan", math.nan, Outcome.ERROR, "the score is nan"),
        ("inf", math.nan, Outcome.ERROR, "the score is inf"),
        ("none", math.nan, Outcome.ERROR, "the reward function returned None, not a number"),
        ("text", math.nan, Outcome.ERROR, "the reward function returned '1.0x', not a number"),
        ("triple", math.nan, Outcome.ERROR, "ValueError: too many values to unpack (expected 2)"),
        ("KeyError", math.nan, Outcome.ERROR, "KeyError: 'KeyError'"),
    ],
)
def test_what_a_function_may_return(returns: Scorer, response: str, score: float, outcome: Outcome, detail: str) -> None:
    verdict = judge(returns, PROMPT, response)
    assert verdict.score == pytest.approx(score, nan_ok=True)
    assert (verdict.outcome, verdict.detail) == (outcome, detail)


def test_what_a_function_is_given(returns: Scorer, rewards: str) -> None:
    judge(returns, PROMPT, "float")
    assert __import__(rewards).seen == [("2+2=", "float", "4", {"hint": "even"})]


def test_a_dotted_path_and_optional_arguments(rewards: str) -> None:
    assert judge(FunctionScorer(f"{rewards}:Judge.score").build(), PROMPT, "4").outcome is Outcome.CORRECT


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("no_such_module:f", "module no_such_module does not import (ModuleNotFoundError: No module named 'no_such_module')"),
        ("{}_broken:f", "does not import (ModuleNotFoundError: No module named 'no_such_dependency')"),
        ("{}:absent", "has no absent"),
        ("{}:constant", "constant is a int, not a function"),
        ("{}:two", "it must take (prompt, response, answer, data), and does not (too many positional arguments)"),
    ],
)
def test_a_missing_function_is_refused_at_load_from_the_verifier_process(rewards: str, function: str, said: str) -> None:
    name = function.format(rewards)
    spec = scorer_spec(JsonlOptions(path="unused", reward=name))
    with Verifier(VerifierOptions(), spec) as verifier, pytest.raises(TrimtabError) as error:
        verifier.ready()
    assert str(error.value).startswith(f"task.reward = {name!r}: ")
    assert said in str(error.value)
