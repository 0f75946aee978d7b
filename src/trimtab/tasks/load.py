"""From options to a task and the specification of its scorer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from trimtab.plugins import attribute
from trimtab.tasks.options import PromptOptions
from trimtab.tasks.protocol import Prompt, Scorer, Task, Verdict
from trimtab.tasks.verifier_process import ScorerSpec


def load_task(options: PromptOptions) -> Task:
    """Read the data; TrimtabError with the reason where that fails."""
    return cast(Callable[[PromptOptions], Task], attribute(options.made_by))(options)


def scorer_spec(options: PromptOptions) -> ScorerSpec:
    """What a :class:`Verifier` needs to score this task."""
    spec = cast(Callable[[PromptOptions], ScorerSpec], attribute(options.scored_by))(options)
    return Stepwise(spec, options) if options.shaping.stepwise else spec


@dataclass(frozen=True, slots=True)
class Stepwise:
    """A scorer whose verdicts carry the rewards of single steps that ``task.shaping`` finds in the response."""

    spec: ScorerSpec
    options: PromptOptions

    @property
    def name(self) -> str:
        return self.spec.name

    def build(self) -> Scorer:
        return _StepwiseScorer(self.spec.build(), self.options)


class _StepwiseScorer:
    def __init__(self, scorer: Scorer, options: PromptOptions) -> None:
        self._scorer, self._options = scorer, options

    def score(self, prompt: Prompt, response: str) -> Verdict:
        verdict = self._scorer.score(prompt, response)
        return replace(verdict, steps=self._options.shaping.steps(self._options, prompt, response))
