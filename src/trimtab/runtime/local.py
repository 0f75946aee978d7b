"""The local runtime: spawned rollout workers beside the learner, weights through shared memory, groups back through the pool."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing

import numpy as np

from trimtab.config.run import LocalOptions
from trimtab.learner.packing import pack
from trimtab.records import Group, Outcome, Rollout, Sampling, Segment, StopReason, TrimtabError
from trimtab.rollout.screen import rendered
from trimtab.runtime.build import Parts
from trimtab.runtime.controller import Controller
from trimtab.runtime.evaluation import Evaluations
from trimtab.runtime.processes import start_evaluator, start_worker
from trimtab.runtime.rescore import Rescore, rescorer
from trimtab.runtime.session import Session
from trimtab.runtime.stopping import Stop
from trimtab.weights.shared import SharedBlocks

PROBE_PROMPTS, PROBE_TOKENS = 8, 512  # most prompts and tokens that engine and learner both score at every publication


class Local:
    """The learner's loop; the controller's thread does the rest. ``lock``: the session's, too."""

    def __init__(self, session: Session, parts: Parts, options: LocalOptions, lock: threading.Lock) -> None:
        self._session, self._parts, self._options, self._lock = session, parts, options, lock
        self._probe = probe(parts, session.config.rollout.temperature)

    def run(self, stopping: Stop) -> bool:
        """Consume batches until the plan is trained (True) or ``stopping`` says so (False)."""
        session, options = self._session, self._options
        with (
            closing(SharedBlocks.create(session.weights())) as blocks,
            closing(Evaluations(session, self._parts.policy, lambda: start_evaluator(session), options.restarts)) as evaluations,
        ):
            controller = Controller(
                session.pool,
                options,
                lambda name: start_worker(session, name, blocks, self._probe, options.worker_threads),
                blocks,
                session.config.learner.accepted_gap,
                self._lock,
                self._rescorer(stopping),
            )
            with closing(controller):
                self._loop(controller, evaluations, stopping)
            if not stopping():
                evaluations.finish(stopping)
        return session.consumed >= session.config.learner.batches

    def _rescorer(self, stopping: Stop) -> Rescore | None:
        score = rescorer(self._session.config, self._session.learner.model)

        def interruptibly(groups: Sequence[Group]) -> list[Group]:
            assert score is not None
            with stopping.in_hand():
                return score(groups)

        return None if score is None else interruptibly

    def _loop(self, controller: Controller, evaluations: Evaluations, stopping: Stop) -> None:
        session = self._session
        with session.clock.span("start"):
            controller.launch()
            self._publish(controller, self._probe)
            controller.wait_ready(stopping)
        while True:
            with session.clock.span("wait"):
                formed = controller.take(stopping)
            if formed is None:
                return
            session.consume(formed, lambda: self._publish(controller, self._probe[:1]), controller.window, controller.waiting_for)
            evaluations.after_batch()

    def _publish(self, controller: Controller, probe: Sequence[Segment]) -> None:
        """With the log-probs of ``probe``: all of it at the start, one sequence from then on, which costs little."""
        scores = [self._score(segment) for segment in probe]
        controller.publish(self._session.version, self._session.weights(), scores, self._session.stop)

    def _score(self, segment: Segment) -> list[float]:
        model = self._session.learner.model
        rollout = Rollout(member=0, segments=(segment,), score=0.0, outcome=Outcome.WRONG, stop=StopReason.EOS)
        return model.score(pack([rollout], device=model.device, dtype=model.dtype)).tolist()


def probe(parts: Parts, temperature: float) -> tuple[Segment, ...]:
    """Sequences that engine and learner both score: the first prompts that can be rendered, every token after the first an action."""
    segments: list[Segment] = []
    left = PROBE_TOKENS
    for row in parts.data.rows[:PROBE_PROMPTS].tolist():
        try:
            _, ids = rendered(parts.sampler.task.prompt, parts.sampler.renderer, row)
        except TrimtabError:  # made up, and not looked at before
            continue
        tokens = np.concatenate([ids, np.array(parts.policy.eos_ids[:1], dtype=np.int32)])[:left]
        left -= len(tokens)
        if len(tokens) > 1:
            segments.append(_teacher_forced(tokens, temperature))
    return tuple(segments)


def _teacher_forced(tokens: np.ndarray, temperature: float) -> Segment:
    mask = np.arange(len(tokens)) > 0
    return Segment(
        tokens=tokens,
        action_mask=mask,
        behavior_logp=np.zeros(len(tokens), np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        turn=np.zeros(len(tokens), np.int16),
        sampling=Sampling(temperature=temperature),
    )
