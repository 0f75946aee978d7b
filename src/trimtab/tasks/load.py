"""From options to a task and the specification of its scorer."""

from __future__ import annotations

from trimtab.tasks.jsonl import JsonlTask
from trimtab.tasks.options import JsonlOptions, ReasoningGymOptions
from trimtab.tasks.protocol import Task
from trimtab.tasks.reasoning import ReasoningGymScorer, ReasoningGymTask
from trimtab.tasks.reward import ExactScorer, FunctionScorer
from trimtab.tasks.verifier_process import ScorerSpec


def load_task(options: ReasoningGymOptions | JsonlOptions) -> Task:
    """Read the data; TrimtabError with the reason where that fails."""
    if isinstance(options, ReasoningGymOptions):
        return ReasoningGymTask(options)
    return JsonlTask(options)


def scorer_spec(options: ReasoningGymOptions | JsonlOptions) -> ScorerSpec:
    """What a :class:`Verifier` needs to score this task."""
    if isinstance(options, ReasoningGymOptions):
        return ReasoningGymScorer(options)
    if options.reward == "exact":
        return ExactScorer(options.answer_after)
    return FunctionScorer(options.reward, options.threshold)
