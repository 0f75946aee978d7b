"""Evaluation on held-out prompts: own prompts, own randomness, one version, never through the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trimtab import keyed
from trimtab.engines.protocol import Engine
from trimtab.records import Outcome, Slot, StoppedByRule, StopReason
from trimtab.rollout.collector import Collector, GroupDone, GroupFailed, Result
from trimtab.rollout.options import EvalOptions, RolloutOptions
from trimtab.rollout.render import Renderer
from trimtab.rollout.verdict_counts import VerdictCounts
from trimtab.tasks.protocol import Task
from trimtab.tasks.verifier import Verifier
from trimtab.telemetry.held_out import Answer, HeldOut, summarize


def shortfall(options: EvalOptions, task: Task) -> str:
    """The sentence about a task that holds out fewer rows than ``eval.prompts``; "" where it has enough."""
    if task.eval_size >= options.prompts:
        return ""
    return f"eval.prompts = {options.prompts}: task {task.name} holds out {task.eval_size} rows, so evaluations use those {task.eval_size}"


def evaluate(
    engine: Engine,
    task: Task,
    verifier: Verifier,
    renderer: Renderer,
    training: RolloutOptions,
    options: EvalOptions,
    *,
    threshold: float,
    rows: Sequence[int] | None = None,
    deadline_s: float = 600.0,
) -> HeldOut:
    """Sample the evaluation prompts of ``rows``: by default the first ``eval.prompts``, or all there are. The engine must be idle and
    keep its version.

    ``training``: how the run's rollouts are generated; ``threshold``: of the task, the score that counts as correct.
    Raises StoppedByRule where no response ends for ``deadline_s`` or none gets a verdict.
    """
    rows = range(min(options.prompts, task.eval_size)) if rows is None else rows
    if engine.running or verifier.pending:
        raise RuntimeError(f"evaluation needs an idle engine and verifier; {engine.running} rows run, {verifier.pending} verdicts are out")
    version = engine.version
    how = options.rollout(training)
    collector = Collector(engine, task, verifier, renderer, how, options.seed, tag=keyed.EVAL, max_groups=len(rows))
    for row in rows:
        collector.assign(Slot(0, row), row, attempt=0)
    results = collector.drain(deadline_s)
    if engine.version != version:
        raise RuntimeError(f"the weights changed from version {version} to {engine.version} during evaluation")
    answers, verdicts = _answers(results), collector.take_counts()
    outcomes, why = verdicts.outcomes, _most_frequent(results, verdicts)
    if not answers:
        raise StoppedByRule(f"eval: none of {len(rows) * options.samples} responses got a verdict: {why}")
    outcomes[Outcome.ERROR.value] += len(rows) * options.samples - verdicts.asked  # prompts that cannot be run
    counts = {outcome.value: outcomes[outcome.value] for outcome in Outcome}
    found = summarize(answers, counts, version=version, rows=len(rows), samples=options.samples, threshold=threshold, error=why)
    return found.judged(options.max_error_share)


def _answers(results: list[Result]) -> list[Answer]:
    """The responses with a verdict, in order of row and sample: what came first is chance."""
    groups = sorted((r.group for r in results if isinstance(r, GroupDone)), key=lambda g: g.slot)
    return [
        Answer(
            prompt=g.prompt,
            score=r.score,
            outcome=r.outcome,
            length=r.actions,
            truncated=r.stop is StopReason.LENGTH,
            source=g.source,
        )
        for g in groups
        for r in g.rollouts
    ]


def _most_frequent(results: list[Result], verdicts: VerdictCounts) -> str:
    """The most frequent reason why a response has no verdict; "" where all have one."""
    reasons = verdicts.reasons + Counter(r.reason for r in results if isinstance(r, GroupFailed) and not r.retry)
    return min(reasons, key=lambda reason: (-reasons[reason], reason)) if reasons else ""
