"""The local runtime: spawned rollout workers beside the learner, weights through shared memory, groups back through the pool."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trimtab.config.models import model_folder
from trimtab.config.run import LocalOptions
from trimtab.learner.packing import pack
from trimtab.records import Outcome, Rollout, Sampling, Segment, StopReason
from trimtab.rollout.messages import WorkerSpec
from trimtab.runtime.build import Parts
from trimtab.runtime.controller import Controller
from trimtab.runtime.evaluation import Evaluations
from trimtab.runtime.session import Session
from trimtab.weights.shared import Layout, SharedBlocks


class Local:
    """The learner's loop; the controller's thread does the rest."""

    def __init__(self, session: Session, parts: Parts, options: LocalOptions) -> None:
        self._session, self._parts, self._options = session, parts, options
        self._probe = probe_segment(parts)

    def run(self, stopping: Callable[[], bool]) -> bool:
        """Consume batches until the plan is trained (True) or ``stopping`` says so (False)."""
        session, options = self._session, self._options
        blocks = SharedBlocks.create(session.weights())
        controller = Controller(
            session.pool, options, self._spec_with(blocks.layout), blocks, self._probe, session.config.learner.probe_gap
        )
        evaluations = Evaluations(session, self._parts.policy, self._spec_with(None))
        session.lock = controller.locked()
        try:
            with session.clock.span("start"):
                controller.launch()
                self._publish(controller)
                controller.wait_ready()
            while not stopping():
                with session.clock.span("wait"):
                    formed = controller.take(options.progress_deadline_s, stopping)
                if formed is None:
                    break
                session.consume(formed, lambda: self._publish(controller), controller.window, controller.waiting_for)
                evaluations.after_batch()
            return not stopping()
        finally:
            with session.clock.span("stop"):
                controller.close()
                evaluations.close()

    def _publish(self, controller: Controller) -> None:
        controller.publish(self._session.version, self._session.weights(), self._score_probe())

    def _score_probe(self) -> tuple[float, ...]:
        """What the learner says of the probe under its weights of now."""
        model = self._session.learner.model
        rollout = Rollout(member=0, segments=(self._probe,), score=0.0, outcome=Outcome.WRONG, stop=StopReason.EOS)
        return tuple(model.score(pack([rollout], device=model.device, dtype=model.dtype)).tolist())

    def _spec_with(self, layout: Layout | None) -> Callable[[str], WorkerSpec]:
        config = self._session.config

        def make(name: str) -> WorkerSpec:
            return WorkerSpec(
                name=name,
                seed=config.seed,
                model=str(model_folder(config.model)),
                task=config.task,
                verifier=config.verifier,
                rollout=config.rollout,
                engine=config.engine,
                layout=layout,
                threads=self._options.worker_threads,
                origin=self._session.origin,
                timeline=config.telemetry.timeline,
                log=str(self._session.folder.path / "run.log"),
            )

        return make


def probe_segment(parts: Parts) -> Segment:
    """A sequence that engine and learner both score: the first prompt, every token after the first an action token."""
    prompt = parts.sampler.renderer.ids(parts.sampler.task.prompt(0))
    tokens = np.concatenate([prompt, np.array(parts.policy.eos_ids[:1], dtype=np.int32)])
    mask = np.arange(len(tokens)) > 0
    return Segment(
        tokens=tokens,
        action_mask=mask,
        behavior_logp=np.zeros(len(tokens), np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        turn=np.zeros(len(tokens), np.int16),
        sampling=Sampling(),
    )
