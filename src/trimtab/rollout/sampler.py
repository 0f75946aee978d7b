"""One sampler: engine, task, verifier and collector built from their options; what a worker, lockstep and an evaluation each own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, cast

from trimtab.engines.forgetting import Phi
from trimtab.engines.options import EngineOptions
from trimtab.engines.protocol import Engine
from trimtab.plugins import attribute
from trimtab.records import TrimtabError
from trimtab.rollout.collector import Collector
from trimtab.rollout.evaluate import evaluate
from trimtab.rollout.options import EvalOptions, RolloutOptions
from trimtab.rollout.render import Renderer
from trimtab.rollout.screen import held_out
from trimtab.rollout.stops import StopStrings
from trimtab.rollout.turns import check_args, runs_past
from trimtab.tasks.load import load_task, scorer_spec
from trimtab.tasks.options import PromptOptions, VerifierOptions
from trimtab.tasks.protocol import Task
from trimtab.tasks.verifier import Verifier
from trimtab.telemetry.held_out import HeldOut

if TYPE_CHECKING:
    from trimtab.engines.checkpoint import Policy

EngineMaker = Callable[["Policy", EngineOptions, Phi | None], Engine]


@dataclass(slots=True)
class Sampler:
    """Closing it ends the verifier's processes."""

    policy: Policy
    engine: Engine
    task: Task
    verifier: Verifier
    renderer: Renderer
    collector: Collector
    options: RolloutOptions
    threshold: float  # of the task: the score that counts as correct

    @classmethod
    def build(
        cls,
        policy: Policy | Callable[[], Policy],
        *,
        task: PromptOptions,
        verifier: VerifierOptions,
        rollout: RolloutOptions,
        engine: EngineOptions,
        seed: int,
        rescore: Phi | None = None,
    ) -> Self:
        """Everything a sampler needs; TrimtabError with the reason where a part cannot be had.

        ``rescore``: the engine scores the forgetting of rollouts that a swap interrupts.
        The task is read first, since that is cheap; a ``policy`` still to be loaded is loaded while the scorers start.
        """
        rows = load_task(task)
        verifying = Verifier(verifier, scorer_spec(task))
        try:
            loaded = policy() if callable(policy) else policy
            renderer = make_renderer(loaded, task, rollout, engine)
            built = make_engine(loaded, engine, rescore)
            verifying.ready()
        except BaseException:
            verifying.close()
            raise
        collector = Collector(built, rows, verifying, renderer, rollout, seed, shaping=task.shaping)
        return cls(loaded, built, rows, verifying, renderer, collector, rollout, task.threshold)

    def evaluate(self, options: EvalOptions) -> HeldOut:
        """Evaluate the weights now served, on the first held-out rows that can be run; nothing may be outstanding."""
        rows = held_out(self.task, self.renderer, options.prompts).rows.tolist()
        return evaluate(self.engine, self.task, self.verifier, self.renderer, self.options, options, threshold=self.threshold, rows=rows)

    def close(self) -> None:
        self.verifier.close()
        self.engine.close()


def make_renderer(policy: Policy, task: PromptOptions, rollout: RolloutOptions, engine: EngineOptions) -> Renderer:
    """Prompts of this policy, as long as model and engine leave room for the response. TrimtabError for what the policy does not have."""
    limit = engine.longest()
    context = min(policy.context, limit or policy.context)
    if rollout.max_new_tokens >= context:
        why = f"the context is {context} tokens, which leaves no room for a prompt; lower it"
        raise TrimtabError.field("rollout.max_new_tokens", rollout.max_new_tokens, why)
    stop_ids, strings = _stops(policy, rollout)
    check_args(policy.tokenizer, task.template_args)
    past = runs_past(policy.tokenizer, task.template_args, stop_ids) if task.conversational else ""
    return Renderer(
        policy.tokenizer,
        context=context,
        max_new_tokens=rollout.max_new_tokens,
        stop_ids=stop_ids,
        stops=StopStrings(policy.tokenizer, strings) if strings else None,
        template_args=task.template_args,
        skip_special=task.skip_special_tokens,
        keep_stop=task.keep_stop,
        notes=(past,) if past else (),
    )


def _stops(policy: Policy, rollout: RolloutOptions) -> tuple[tuple[int, ...], list[str]]:
    """The ids that end a response, those of the model's folder first, and the strings; a string that is one special token is its id."""
    special = policy.tokenizer.get_added_vocab()
    ids, strings = list(policy.eos_ids), []
    for stop in rollout.stop:
        if isinstance(stop, int):
            if stop >= policy.vocabulary.size or stop in policy.vocabulary.holes:
                raise TrimtabError.field("rollout.stop", stop, "the tokenizer has no such id, so it is never sampled; name one that it has")
            ids.append(stop)
        elif stop in special:
            ids.append(special[stop])
        else:
            strings.append(stop)
    return tuple(dict.fromkeys(ids)), strings


def make_engine(policy: Policy, options: EngineOptions, rescore: Phi | None = None) -> Engine:
    """The engine of these options, serving version 0."""
    return cast(EngineMaker, attribute(options.made_by))(policy, options, rescore)
