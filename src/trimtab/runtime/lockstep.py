"""Lockstep: one process, a fixed schedule, deterministic to the bit.

    batch t trains on rollouts of the weights as they stood after max(0, t - lag) consumed batches

The pool's own rules give exactly this schedule when it is driven synchronously in order: with ``max_lag = depth = lag`` it admits
batches 0..lag before the first step and one more after each (docs/pool-theorem.md), and every group is finished before a batch is formed.

With ``swap_every = n`` a batch is generated when it is consumed: it starts on the weights of max(0, t - lag) consumed batches and
moves to the next newer ones every n decode steps, so that its tokens are ``lag`` batches old at the start and younger at the end.

With ``surplus = s`` every batch brings ceil(B (1 + s)) groups instead of B, generated when the batch is due (on the same old weights),
and a selector, or the order of arrival, takes B of all that wait. What is left over waits, and grows older than ``lag``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

from torch import Tensor

from trimtab.config.run import LockstepOptions
from trimtab.pool.options import PoolOptions
from trimtab.pool.pool import Pool
from trimtab.pool.results import Fate, Finished, Formed, Ticket
from trimtab.records import Slot, StoppedByRule, Version
from trimtab.rollout.collector import GroupDone, Result
from trimtab.rollout.sampler import Sampler
from trimtab.runtime.evaluation import Evaluations
from trimtab.runtime.fates import FateLog
from trimtab.runtime.processes import start_evaluator
from trimtab.runtime.rescore import rescorer
from trimtab.runtime.session import SamplerWindow, Session
from trimtab.runtime.snapshots import Snapshot, Snapshots
from trimtab.runtime.stopping import Stop
from trimtab.weights.inprocess import publish
from trimtab.weights.publish import Times

WORKER = "lockstep"
EVALUATOR_RESTARTS = 3


def pool_options(options: LockstepOptions, straggler_deadline_s: float = 3600.0) -> PoolOptions:
    """The pool that drives this schedule."""
    if options.surplus:
        return PoolOptions(max_lag=options.max_lag, order="fifo", straggler_deadline_s=straggler_deadline_s, surplus=options.surplus)
    depth = 0 if options.swap_every else options.lag
    return PoolOptions(max_lag=options.lag, depth=depth, order="fifo", straggler_deadline_s=straggler_deadline_s)


class Lockstep:
    """Generates what is due, forms a batch, has the session consume it; again. The session tells ``snapshots`` of every batch."""

    def __init__(self, session: Session, sampler: Sampler, options: LockstepOptions, snapshots: Snapshots) -> None:
        self._session, self._options, self._snapshots = session, options, snapshots
        self._policy, self._collector, self._engine = sampler.policy, sampler.collector, sampler.engine
        self._pool: Pool = session.pool
        self._times: list[Times] = []
        self._given_up = 0
        self._fates = FateLog()
        self._rescore = rescorer(session.config, session.learner.model)

    def run(self, stopping: Stop) -> bool:
        """Consume batches until the plan is trained (True) or ``stopping`` says so (False)."""
        session = self._session
        if not self._snapshots:
            self._snapshots.remember(session.version, session.weights())
        self._publish(session.version, session.weights())
        with closing(Evaluations(session, self._policy, lambda: start_evaluator(session), EVALUATOR_RESTARTS)) as evaluations:
            while not stopping():
                with session.clock.span("wait"):
                    formed = self._next()
                if formed is None:
                    break
                session.consume(formed, self._publish_newest, self._window, lambda: "learner waits for its own sampling")
                evaluations.after_batch()
            if not stopping():
                evaluations.finish(stopping)
        return session.consumed >= session.config.learner.batches

    # ------------------------------------------------------------------------------------------------ generation
    def _next(self) -> Formed | None:
        """Admit and finish everything that is due, in rounds, then form; a second round generates the retries of the first.

        A round is admitted whole before it starts and settled in order of slot when it is over, so that nothing depends on when
        a verdict came: neither which rows are decoded together nor what the pool sees first.
        """
        while True:
            ladder = self._snapshots.ladder(self._pool.calibrating)
            self._swap(ladder, 0)
            if not self._admit():
                break
            for event in sorted(self._round(ladder), key=_slot):
                self._settle(event)
        if self._rescore is not None:
            with self._session.stop.in_hand():
                scored = self._rescore(self._pool.unscored())
            for group in scored:
                self._pool.rescored(group)
        formed = self._pool.form()
        if isinstance(formed, Finished):
            return None
        if not isinstance(formed, Formed):
            raise StoppedByRule(f"lockstep cannot form batch {self._session.consumed}: {formed.why}")
        return formed

    def _admit(self) -> int:
        """Assign everything the pool admits; how much may be under way is its business alone."""
        admitted = 0
        while isinstance(ticket := self._pool.admit(WORKER, self._engine.version, time.monotonic()), Ticket):
            self._collector.assign(ticket.slot, ticket.prompt, ticket.attempt)
            admitted += 1
        return admitted

    def _round(self, ladder: Sequence[Snapshot]) -> list[Result]:
        """Generate and score what is admitted, moving up the ladder of weights every ``swap_every`` decode steps."""
        events: list[Result] = []
        steps = 0
        every = self._options.swap_every
        while self._collector.outstanding:
            if every and self._engine.running and steps % every == 0:
                self._swap(ladder, steps // every)
            with self._session.stop.in_hand():
                events += self._collector.step()
            steps += 1
        return events

    def _settle(self, event: Result) -> None:
        if isinstance(event, GroupDone):
            delivery = self._pool.deliver(WORKER, event.group)
        else:
            delivery = self._pool.fail(WORKER, event.slot, event.attempt, event.reason, retry=event.retry)
            self._fates.note(WORKER, delivery, retry=event.retry)
        self._given_up += delivery.fate is Fate.FAILED

    # ------------------------------------------------------------------------------------------------ weights
    def _publish_newest(self) -> None:
        if not self._snapshots.kept:
            self._publish(self._session.version, self._session.weights())

    def _publish(self, version: Version, weights: dict[str, Tensor]) -> None:
        self._times.append(publish(version, weights, [self._engine]))

    def _swap(self, ladder: Sequence[Snapshot], rung: int) -> None:
        """Serve the weights at ``rung``, or the newest; nothing where they are served already, or without a ladder."""
        if not ladder:
            return
        number, weights = ladder[min(rung, len(ladder) - 1)]
        if number != self._engine.version:
            self._publish(Version(self._session.version.incarnation, number), weights)

    def _window(self) -> SamplerWindow:
        published, self._times = self._times, []
        given_up, self._given_up = self._given_up, 0
        return SamplerWindow(published=published, verdicts=self._collector.take_counts(), given_up=given_up)


def _slot(event: Result) -> Slot:
    return event.group.slot if isinstance(event, GroupDone) else event.slot
