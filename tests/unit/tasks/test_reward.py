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
import functools
import math
import numpy as np
from trimtab.records import Outcome
from trimtab.tasks.protocol import Step, Verdict
seen = []
def returns(prompt, response, answer, data):
    seen.append((prompt, response, answer, data))
    return {"float": 0.25, "true": True, "one": 1, "pair": (0.5, "half way"), "named": (0.0, "unparseable"), "skip": (1.0, "error"),
            "verdict": Verdict(score=0.25, outcome=Outcome.CORRECT, steps=(Step(0.5, 3),)),
            "nan": math.nan, "inf": math.inf, "none": None, "text": "1.0x", "triple": (1, 2, 3), "digits": "1.0", "complex": 1j,
            "huge int": 10**400, "list": [1.0], "numpy": np.float32(0.25), "large": 1e6, "too large": 1e308, "too low": -1.1e6,
            "timeout": (0.0, "timeout"),
            "none inside": Verdict(score=None, outcome=Outcome.CORRECT), "no outcome": Verdict(score=1.0, outcome="correct"),
            "large reward": Verdict(score=1.0, outcome=Outcome.CORRECT, reward=1e9),
            "large step": Verdict(score=1.0, outcome=Outcome.CORRECT, steps=(Step(1.0), Step(-2e6))),
            "large sum": Verdict(score=1.0, outcome=Outcome.CORRECT, steps=(Step(8e5), Step(-8e5))),
            "nan step": Verdict(score=1.0, outcome=Outcome.CORRECT, steps=(Step(math.nan),))}[response]
class Mute(Exception):
    def __str__(self): raise RuntimeError("no words")
def mute(prompt, response, answer, data): raise Mute
def deep(prompt, response, answer, data): return deep(prompt, response, answer, data)
def helper(response): return 1 / len(response)
def raises(prompt, response, answer, data): return helper(response)
async def waits(prompt, response, answer, data): return 1.0
async def streams(prompt, response, answer, data): yield 1.0
class Awaited:
    async def __call__(self, prompt, response, answer, data): return 1.0
awaited, part, hidden = Awaited(), functools.partial(waits), lambda *args: waits(*args)
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
        ("skip", math.nan, Outcome.ERROR, "the scorer calls it an error"),
        ("nan", math.nan, Outcome.ERROR, "the score is nan"),
        ("inf", math.nan, Outcome.ERROR, "the score is inf"),
        ("none", math.nan, Outcome.ERROR, "the reward function returned None, not a number"),
        ("text", math.nan, Outcome.ERROR, "the reward function returned '1.0x', not a number"),
        ("triple", math.nan, Outcome.ERROR, "the reward function returned (1, 2, 3), not a number"),
        ("digits", math.nan, Outcome.ERROR, "the reward function returned '1.0', not a number"),
        ("complex", math.nan, Outcome.ERROR, "the reward function returned 1j, not a number"),
        ("huge int", math.nan, Outcome.ERROR, "the reward function returned 100000000000000000...0000000000000000000, not a number"),
        ("list", math.nan, Outcome.ERROR, "the reward function returned [1.0], not a number"),
        ("numpy", 0.25, Outcome.WRONG, ""),
        ("large", 1e6, Outcome.CORRECT, ""),
        ("too large", math.nan, Outcome.ERROR, "the score is 1e+308, and rewards are at most 1e+06 in size; scale it"),
        ("too low", math.nan, Outcome.ERROR, "the score is -1.1e+06, and rewards are at most 1e+06 in size; scale it"),
        ("timeout", 0.0, Outcome.TIMEOUT, ""),
        ("none inside", math.nan, Outcome.ERROR, "the score is None, not a number"),
        ("no outcome", math.nan, Outcome.ERROR, "the outcome of the verdict is 'correct', not an Outcome"),
        ("large reward", math.nan, Outcome.ERROR, "the reward is 1e+09, and rewards are at most 1e+06 in size; scale it"),
        ("large step", math.nan, Outcome.ERROR, "the reward of a step is -2e+06, and rewards are at most 1e+06 in size; scale it"),
        ("large sum", math.nan, Outcome.ERROR, "the sum of the steps is 1.6e+06, and rewards are at most 1e+06 in size; scale it"),
        ("nan step", math.nan, Outcome.ERROR, "the reward of a step is nan"),
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
        ("{}:waits", "waits is an async function, and rewards are not awaited; give a plain one (it may call asyncio.run itself)"),
        ("{}:streams", "streams is an async function, and rewards are not awaited"),
        ("{}:awaited", "awaited is an async function, and rewards are not awaited"),
        ("{}:part", "part is an async function, and rewards are not awaited"),
        ("random:score", "module random has no score (it is "),
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


def test_an_async_function_that_hides_gives_an_error_with_a_name(rewards: str, recwarn: pytest.WarningsRecorder) -> None:
    verdict = judge(FunctionScorer(f"{rewards}:hidden").build(), PROMPT, "x")
    assert verdict.outcome is Outcome.ERROR
    assert verdict.detail == "the reward function returned a coroutine, and rewards are not awaited"
    assert not [w for w in recwarn if "never awaited" in str(w.message)]


def test_an_error_carries_its_traceback_from_the_first_frame_of_the_user(rewards: str) -> None:
    verdict = judge(FunctionScorer(f"{rewards}:raises").build(), PROMPT, "")
    assert verdict.detail == "ZeroDivisionError: division by zero"
    head, *frames, last = verdict.trace.splitlines()
    assert (head, last) == ("Traceback (most recent call last):", verdict.detail)
    assert [line.partition(", in ")[2] for line in frames if line.startswith("  File")] == ["raises", "helper"]


def test_errors_without_words_and_without_end_are_errors_all_the_same(rewards: str) -> None:
    mute = judge(FunctionScorer(f"{rewards}:mute").build(), PROMPT, "")
    assert (mute.outcome, mute.detail) == (Outcome.ERROR, "Mute: (its message cannot be had: RuntimeError)")
    deep = judge(FunctionScorer(f"{rewards}:deep").build(), PROMPT, "")
    assert deep.detail.startswith("RecursionError: ")
    assert "more times]" in deep.trace
    assert len(deep.trace) <= 4003
