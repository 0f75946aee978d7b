"""One sampler: engine, task, verifier and collector built from their options; what a worker, lockstep and an evaluation each own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from trimtab.engines.latency import LatencyEngine
from trimtab.engines.options import LatencyEngineOptions, ScriptedEngineOptions, TorchEngineOptions
from trimtab.engines.protocol import Engine
from trimtab.records import TrimtabError
from trimtab.rollout.collector import Collector
from trimtab.rollout.evaluate import EvalResult, evaluate
from trimtab.rollout.options import RolloutOptions
from trimtab.rollout.render import Renderer
from trimtab.tasks.load import load_task, scorer_spec
from trimtab.tasks.options import JsonlOptions, ReasoningGymOptions, VerifierOptions
from trimtab.tasks.protocol import Task
from trimtab.tasks.verifier import Verifier

if TYPE_CHECKING:
    from trimtab.engines.checkpoint import Policy


@dataclass(slots=True)
class Sampler:
    """Closing it ends the verifier's processes."""

    engine: Engine
    task: Task
    verifier: Verifier
    renderer: Renderer
    collector: Collector
    options: RolloutOptions

    @classmethod
    def build(
        cls,
        policy: Policy,
        *,
        task: ReasoningGymOptions | JsonlOptions,
        verifier: VerifierOptions,
        rollout: RolloutOptions,
        engine: TorchEngineOptions | ScriptedEngineOptions,
        seed: int,
    ) -> Self:
        """Everything a sampler needs; TrimtabError with the reason where a part cannot be had."""
        loaded = load_task(task)
        renderer = make_renderer(policy, rollout)
        verifying = Verifier(verifier, scorer_spec(task))
        try:
            built = make_engine(policy, engine)
            verifying.ready()
        except BaseException:
            verifying.close()
            raise
        return cls(built, loaded, verifying, renderer, Collector(built, loaded, verifying, renderer, rollout, seed), rollout)

    def evaluate(self, rows: int, seed: int) -> EvalResult:
        """Held-out accuracy of the weights now served; nothing may be outstanding."""
        return evaluate(self.engine, self.task, self.verifier, self.renderer, self.options, seed, rows=rows)

    def close(self) -> None:
        self.verifier.close()
        self.engine.close()


def make_renderer(policy: Policy, rollout: RolloutOptions) -> Renderer:
    return Renderer(policy.tokenizer, context=policy.context, max_new_tokens=rollout.max_new_tokens, stop_ids=policy.eos_ids)


def make_engine(policy: Policy, options: TorchEngineOptions | ScriptedEngineOptions) -> Engine:
    """The engine of these options, serving version 0."""
    if isinstance(options, TorchEngineOptions):
        from trimtab.engines.torch_engine import TorchEngine

        engine = TorchEngine(policy, options)
        return LatencyEngine(engine, options.step_s) if isinstance(options, LatencyEngineOptions) else engine
    from trimtab.engines.scripted import ScriptedEngine

    return ScriptedEngine(options)


def check_prompts(task: Task, renderer: Renderer, rows: int = 64) -> None:
    """Render a few prompts before anything expensive starts; TrimtabError if none of them can be run."""
    first: TrimtabError | None = None
    for row in range(min(rows, len(task))):
        try:
            renderer.ids(task.prompt(row))
            return
        except TrimtabError as error:
            first = first or error
    if first is not None:
        raise first
