"""The asynchronous loop as a discrete-event model: the real pool, admission, order and selector; modelled times.

::

    samplers ── deliver ──▶ Pool ── form ──▶ learner: train, consumed, publish, after ──▶ samplers stage, then swap
        ▲                    │
        └────── admit ◀──────┘   in the controller's turns: when it hears of something, else at its next tick

Nothing that decides is written again here: who is admitted, what is dropped, which groups form a batch is :mod:`trimtab.pool` and the
methods of the configuration. Simulated are clocks. Scores come from the model of times, not from a policy: it tells ages, waits and rates,
never accuracies. Equal seeds give equal runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from trimtab.config.run import LocalOptions, RunConfig
from trimtab.control.protocol import StepResult
from trimtab.extras import require
from trimtab.pool.pool import Pool
from trimtab.pool.results import Fate, Finished, Formed, Ticket
from trimtab.records import Group, TrimtabError
from trimtab.rollout.worker import PULSE_S
from trimtab.runtime.build import make_pool
from trimtab.runtime.controller import TICK_S
from trimtab.sim.figures import BatchFacts, Figures, figures
from trimtab.sim.model import LearnerStep, Model
from trimtab.sim.sampler import Process, SimSampler

PROMPTS = 100_000  # rows of the simulated task, unless said otherwise
TURN_S = 0.0015  # from a message to the controller's answer: a socket each way, and an interpreter that it shares with the learner


@dataclass(frozen=True, slots=True)
class Simulated:
    """A run: its batches, and what became of every slot that was admitted."""

    batches: tuple[BatchFacts, ...]
    slots: Mapping[str, int]  # by state

    def figures(self, warm: int) -> Figures:
        return figures(self.batches, warm)


def simulate(
    config: RunConfig,
    model: Model,
    seed: int = 0,
    until_s: float = float("inf"),
    prompts: int = PROMPTS,
    batches: int | None = None,
) -> Simulated:
    """A run of the local runtime, to the end of its plan, for ``until_s`` simulated seconds, or for so many ``batches`` of its plan.

    ``prompts``: rows of its task.

    Raises:
        MissingExtra: the extra ``lab`` is not installed.
        TrimtabError: the configuration is of another runtime.
        StoppedByRule: what the pool says where nothing can go on.
    """
    require("lab", "trimtab.sim")
    if not isinstance(config.runtime, LocalOptions):
        raise TrimtabError.field("runtime.kind", config.runtime.kind, "the model has samplers beside a learner; use local")
    return _Loop(config, config.runtime, model, seed, prompts, batches).run(until_s)


class _Loop:
    def __init__(self, config: RunConfig, runtime: LocalOptions, model: Model, seed: int, prompts: int, most_batches: int | None) -> None:
        self._config, self._model, self._most_batches = config, model, most_batches
        import simpy

        chain = config.chain()
        self._pool: Pool = make_pool(config, chain, prompts)
        self._env = simpy.Environment()
        self._groups, self._steps, *of_samplers = (np.random.default_rng([seed, i]) for i in range(2 + runtime.workers))
        most = config.rollout.held_batches * config.rollout.prompts_per_batch
        self._samplers = [
            SimSampler(self._env, f"worker-{i}", config.engine.slots, most, model, self._deliver, rng) for i, rng in enumerate(of_samplers)
        ]
        self._arrival = self._env.event()
        self._published: simpy.Event = self._env.event()
        self._published.succeed()
        self._inbox: deque[Callable[[], None]] = deque()
        self._woken = False  # the controller will have a turn
        self._turned = 0.0  # its last one
        self._let_go = 0
        self._batches: list[BatchFacts] = []

    def run(self, until_s: float) -> Simulated:
        self._admit()
        learner = self._env.process(self._learn())
        self._env.run(learner if until_s == float("inf") else self._env.any_of([learner, self._env.timeout(until_s)]))
        return Simulated(tuple(self._batches), dict(self._pool.facts(self._env.now).counts))

    # ------------------------------------------------------------------------------------------------ controller
    def _tell(self, what: Callable[[], None] | None = None) -> None:
        """The controller is woken, or told of something; what comes before its turn it hears then, too."""
        if what is not None:
            self._inbox.append(what)
        if not self._woken:
            self._woken = True
            self._env.process(self._turn(TURN_S))

    def _look_up(self) -> None:
        """It has not been told of something: it finds out at its tick, or with the next pulse of a sampler."""
        now = self._env.now
        spoken = [(self._turned, TICK_S), *((sampler.spoke, PULSE_S) for sampler in self._samplers)]
        self._env.process(self._turn(min(every - (now - last) % every for last, every in spoken)))

    def _turn(self, seconds: float) -> Process:
        yield self._env.timeout(seconds)
        self._woken, self._turned, news = False, self._env.now, bool(self._inbox)
        while self._inbox:
            self._inbox.popleft()()
        self._admit()
        if news and not self._arrival.triggered:
            self._arrival.succeed()

    def _admit(self) -> None:
        """Turn about, as the controller does."""
        able = list(self._samplers)
        while able:
            for sampler in list(able):
                ticket = self._pool.admit(sampler.name, sampler.held, self._env.now) if sampler.room > 0 else None
                if isinstance(ticket, Ticket):
                    sampler.assign(ticket, self._model.group(self._groups, ticket.slot, self._config.rollout.group_size))
                else:
                    able.remove(sampler)

    def _deliver(self, name: str, group: Group) -> None:
        def heard() -> None:
            if self._pool.deliver(name, group).fate is Fate.DROPPED:
                self._let_go += 1

        self._tell(heard)

    # ------------------------------------------------------------------------------------------------ learner
    def _learn(self) -> Process:
        version = 0
        while True:
            begun = self._env.now
            self._tell()
            while not isinstance(formed := self._pool.form(), Formed):
                if isinstance(formed, Finished):
                    return
                self._let_go += len(formed.let_go)
                if formed.let_go:  # places are free
                    self._look_up()
                self._arrival = self._env.event()
                yield self._arrival
            waited = self._env.now - begun
            step = self._model.step(self._steps, formed.batch.number)
            yield self._env.timeout(step.train_s)
            version += step.applied
            self._pool.consumed(version, [_told(step, formed.batch.number)])
            if step.applied:
                yield self._published
                yield self._env.timeout(step.publish_s)
                self._publish(version, step)
                self._tell()
            else:  # places are free all the same
                self._look_up()
            waiting = self._pool.facts(self._env.now).counts["waiting"]
            yield self._env.timeout(step.after_s)
            self._record(formed, waited, waiting)
            if len(self._batches) == self._most_batches:
                return

    def _publish(self, version: int, step: LearnerStep) -> None:
        """Stage everywhere, then commit everywhere; every sampler answers at a step boundary of its own."""
        self._published = self._env.event()
        left = {"stage": len(self._samplers), "commit": len(self._samplers)}

        def staged() -> None:
            left["stage"] -= 1
            if not left["stage"]:
                for sampler in self._samplers:
                    sampler.commit(version, step.pause_s, partial(self._tell, committed))

        def committed() -> None:
            left["commit"] -= 1
            if not left["commit"]:
                self._published.succeed()

        for sampler in self._samplers:
            sampler.stage(step.stage_s, partial(self._tell, staged))

    def _record(self, formed: Formed, waited: float, waiting: int) -> None:
        versions = [r.versions().astype(np.int64) for r in formed.batch.rollouts]
        spent = [sampler.spent() for sampler in self._samplers]
        self._batches.append(
            BatchFacts(
                end_s=self._env.now,
                wait_s=waited,
                tokens=sum(len(v) for v in versions),
                age=float(sum((formed.batch.version - v).sum() for v in versions)),
                generation=float(sum((v.max() - v).sum() for v in versions)),
                busy_s=sum(busy for busy, _ in spent),
                idle_s=sum(idle for _, idle in spent),
                trained=len(formed.batch.groups),
                let_go=self._let_go + len(formed.let_go),
                waiting=waiting,
            )
        )
        self._let_go = 0


def _told(step: LearnerStep, batch: int) -> StepResult:
    """What the pool's methods hear of a batch; the model has one update a batch, and no gradient."""
    reason = "" if step.applied else "skipped by the model"
    return StepResult(applied=step.applied, reason=reason, multiplier=float(step.applied), batch_id=batch, mini_step=0, raw_norm=0.0)
