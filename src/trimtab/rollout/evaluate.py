"""Held-out accuracy: own prompts, own randomness, one version, never through the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trimtab import keyed
from trimtab.engines.protocol import Engine
from trimtab.records import Outcome, Rollout, Slot, StoppedByRule, StopReason, TrimtabError
from trimtab.rollout.collector import Collector, GroupDone, GroupFailed
from trimtab.rollout.options import RolloutOptions
from trimtab.rollout.render import Renderer
from trimtab.tasks.protocol import Task
from trimtab.tasks.verifier import Verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """One response to each of ``rows`` held-out prompts, sampled by ``version``.

    ``accuracy`` and ``score`` are means over the responses that got a verdict; the others count in ``outcomes["error"]``.
    ``lengths``: action tokens of each response with a verdict, in order of row.
    """

    version: int
    rows: int
    accuracy: float
    score: float
    outcomes: Mapping[str, int]
    lengths: tuple[int, ...]
    truncated: float  # share of responses cut off at max_new_tokens

    @property
    def mean_length(self) -> float:
        return float(np.mean(self.lengths))


def evaluate(
    engine: Engine,
    task: Task,
    verifier: Verifier,
    renderer: Renderer,
    options: RolloutOptions,
    seed: int,
    *,
    rows: int | None = None,
    deadline_s: float = 600.0,
) -> EvalResult:
    """Sample the first ``rows`` evaluation prompts once each (default: all). The engine must be idle and keep its version.

    Raises TrimtabError where the task has fewer rows, StoppedByRule where no response ends for ``deadline_s`` or none gets a verdict.
    """
    rows = task.eval_size if rows is None else rows
    if rows > task.eval_size:
        raise TrimtabError.field("eval.prompts", rows, f"task {task.name} has {task.eval_size} evaluation rows; lower it")
    if engine.running or verifier.pending:
        raise RuntimeError(f"evaluation needs an idle engine and verifier; {engine.running} rows run, {verifier.pending} verdicts are out")
    version = engine.version
    single = options.model_copy(update={"group_size": 1, "min_group": 1})
    collector = Collector(engine, task, verifier, renderer, single, seed, tag=keyed.EVAL, max_groups=rows)
    for row in range(rows):
        collector.assign(Slot(0, row), row, attempt=0)
    results = collector.drain(deadline_s)
    if engine.version != version:
        raise RuntimeError(f"the weights changed from version {version} to {engine.version} during evaluation")
    done = sorted((r.group for r in results if isinstance(r, GroupDone)), key=lambda g: g.slot)
    if not done:
        why = next(r.reason for r in results if isinstance(r, GroupFailed))
        raise StoppedByRule(f"eval: none of {rows} responses got a verdict: {why}")
    return summarize([g.rollouts[0] for g in done], rows, version)


def summarize(rollouts: list[Rollout], rows: int, version: int) -> EvalResult:
    """The result of ``rows`` evaluation prompts of which ``rollouts`` got a verdict."""
    outcomes = Counter(r.outcome.value for r in rollouts)
    outcomes[Outcome.ERROR.value] += rows - len(rollouts)
    n = len(rollouts)
    return EvalResult(
        version=version,
        rows=rows,
        accuracy=outcomes[Outcome.CORRECT.value] / n,
        score=sum(r.score for r in rollouts) / n,
        outcomes={outcome.value: outcomes[outcome.value] for outcome in Outcome},
        lengths=tuple(r.actions for r in rollouts),
        truncated=sum(r.stop is StopReason.LENGTH for r in rollouts) / n,
    )
