"""Rewards that a user brings as "module:function", and exact match. They are loaded and run in the verifier process only."""

from __future__ import annotations

import inspect
import math
import reprlib
import sys
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.records import Json, Outcome, TrimtabError
from trimtab.tasks.options import JsonlOptions
from trimtab.tasks.own_module import import_own
from trimtab.tasks.protocol import Prompt, Scorer, Verdict
from trimtab.tasks.template import answer_part

Reward = bool | float | tuple[float, str] | Verdict
RewardFunction = Callable[[str, str, str, dict[str, Json]], Reward]  # prompt, response, answer, data

_OUTCOMES = frozenset(outcome.value for outcome in Outcome)


def spec(options: JsonlOptions) -> FunctionScorer | ExactScorer:
    """The scorer that ``task.reward`` names."""
    if options.reward == "exact":
        return ExactScorer(options.answer_after)
    return FunctionScorer(options.reward, options.threshold)


@dataclass(frozen=True, slots=True)
class FunctionScorer:
    """Specification of a reward ``function(prompt, response, answer, data) -> float | bool | (float, str) | Verdict``.

    A score of at least ``threshold`` is correct. The string of a pair sets the outcome where it is an outcome's name
    ("unparseable"); any other is kept as detail. A ``Verdict`` is taken as it is: it may carry a reward that is not the score,
    or the rewards of single steps. With messages, ``prompt`` is the content of the last user message.
    """

    function: str
    threshold: float = 1.0

    @property
    def name(self) -> str:
        return self.function

    def build(self) -> Scorer:
        """Import the function; TrimtabError with the reason where that fails or it cannot be called with four arguments."""
        module_name, _, path = self.function.partition(":")
        where = f"task.reward = {self.function!r}"
        try:
            target: object = import_own(module_name)
        except Exception as error:
            raise TrimtabError(
                f"{where}: module {module_name} does not import ({type(error).__name__}: {error}); it must be on the Python path or in the "
                "directory the command is run in"
            ) from error
        for part in path.split("."):
            if not hasattr(target, part):
                raise TrimtabError(f"{where}: module {module_name} has no {path} (it is {_place(module_name)})")
            target = getattr(target, part)
        if not callable(target):
            raise TrimtabError(f"{where}: {path} is a {type(target).__name__}, not a function")
        if _is_async(target):
            raise TrimtabError(
                f"{where}: {path} is an async function, and rewards are not awaited; give a plain one (it may call asyncio.run itself)"
            )
        try:
            inspect.signature(target).bind("", "", "", {})
        except TypeError as error:
            raise TrimtabError(f"{where}: it must take (prompt, response, answer, data), and does not ({error})") from None
        except ValueError:
            pass  # a built-in without a signature: the first call tells
        return _Function(target, self.threshold)


class _Function:
    def __init__(self, function: RewardFunction, threshold: float) -> None:
        self._function, self._threshold = function, threshold

    def score(self, prompt: Prompt, response: str) -> Verdict:
        reward = self._function(prompt.text, response, prompt.answer, dict(prompt.data))
        if isinstance(reward, Verdict):
            return reward
        value, detail = reward if isinstance(reward, tuple) and len(reward) == 2 else (reward, "")
        if inspect.iscoroutine(value):
            value.close()  # nobody will await it
            return _error("the reward function returned a coroutine, and rewards are not awaited")
        score = _number(value)
        if score is None:
            return _error(f"the reward function returned {reprlib.repr(value)}, not a number")
        if detail in _OUTCOMES:
            return Verdict(score=score, outcome=Outcome(detail))
        return Verdict(score=score, outcome=Outcome.CORRECT if score >= self._threshold else Outcome.WRONG, detail=str(detail))


def _error(detail: str) -> Verdict:
    return Verdict(score=math.nan, outcome=Outcome.ERROR, detail=detail)


def _number(value: object) -> float | None:
    """A number of Python, NumPy or torch as a float; None for anything else, text that looks like one included."""
    if isinstance(value, str | bytes | bytearray):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor of several elements
        return None


def _is_async(target: object) -> bool:
    kinds = inspect.iscoroutinefunction, inspect.isasyncgenfunction
    return any(is_one(f) for is_one in kinds for f in (target, getattr(target, "__call__", None)))  # noqa: B004 - the method itself


def _place(module: str) -> str:
    """Where a module came from: a file of one's own may have the name of an installed one."""
    return getattr(sys.modules[module], "__file__", None) or "built in"


@dataclass(frozen=True, slots=True)
class ExactScorer:
    """Specification of exact match: the answer part of the response equals the answer, white space at the ends apart."""

    answer_after: str | None = None
    name: str = "exact"

    def build(self) -> Scorer:
        return self

    def score(self, prompt: Prompt, response: str) -> Verdict:
        answer = answer_part(response, self.answer_after)
        if not answer:
            return Verdict(score=0.0, outcome=Outcome.UNPARSEABLE, detail="no answer")
        correct = answer == prompt.answer.strip()
        return Verdict(score=float(correct), outcome=Outcome.CORRECT if correct else Outcome.WRONG, detail=repr(answer))
