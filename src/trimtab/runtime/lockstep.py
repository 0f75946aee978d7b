"""Lockstep: one process, a fixed schedule, deterministic to the bit.

    batch t trains on rollouts of the weights as they stood after max(0, t - lag) consumed batches

The pool's own rules give exactly this schedule when it is driven synchronously in order: with ``max_lag = depth = lag`` it admits
batches 0..lag before the first step and one more after each (docs/pool-theorem.md), and every group is finished before a batch is formed.

With ``swap_every = n`` a batch is generated when it is consumed: it starts on the weights of max(0, t - lag) consumed batches and
moves to the next newer ones every n decode steps, so that its tokens are ``lag`` batches old at the start and younger at the end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from torch import Tensor

from trimtab.config.run import LockstepOptions
from trimtab.pool.options import PoolOptions
from trimtab.pool.pool import Pool
from trimtab.pool.results import Finished, Formed, Ticket
from trimtab.records import StoppedByRule, Version
from trimtab.rollout.collector import GroupDone, GroupFailed
from trimtab.rollout.sampler import Sampler
from trimtab.runtime.session import Session, Window
from trimtab.store.tree import StateTree
from trimtab.weights.inprocess import publish
from trimtab.weights.publish import Times

WORKER = "lockstep"


def pool_options(options: LockstepOptions, straggler_deadline_s: float = 3600.0) -> PoolOptions:
    """The pool that drives this schedule."""
    depth = 0 if options.swap_every else options.lag
    return PoolOptions(max_lag=options.lag, depth=depth, order="fifo", straggler_deadline_s=straggler_deadline_s)


class Lockstep:
    """Generates what is due, forms a batch, has the session consume it; again."""

    def __init__(self, session: Session, sampler: Sampler, options: LockstepOptions) -> None:
        self._session, self._options = session, options
        self._collector, self._engine = sampler.collector, sampler.engine
        self._pool: Pool = session.pool
        self._times: list[Times] = []
        # Weights after the last lag + 1 consumed batches, oldest first; only swap_every needs more than the newest.
        self._snapshots: deque[tuple[int, dict[str, Tensor]]] = deque(maxlen=options.lag + 1)

    def run(self, stopping: Callable[[], bool]) -> bool:
        """Consume batches until the plan is trained (True) or ``stopping`` says so (False)."""
        if self._options.swap_every and not self._snapshots:
            self._remember()
        self._publish(self._session.version, self._session.weights())
        while not stopping():
            with self._session.clock.span("wait"):
                formed = self._next()
            if formed is None:
                return True
            self._session.consume(formed, self._publish_newest, self._window, lambda: "learner waits for its own sampling")
            if self._options.swap_every:
                self._remember()
        return False

    # ------------------------------------------------------------------------------------------------ generation
    def _next(self) -> Formed | None:
        """Admit and finish everything that is due, then form."""
        if self._options.swap_every:
            self._start_old()
        steps = 0
        while True:
            admitted = self._admit()
            if not (admitted or self._collector.outstanding):
                break
            while self._collector.outstanding:
                if self._options.swap_every and steps and steps % self._options.swap_every == 0:
                    self._swap(steps // self._options.swap_every)
                for event in self._collector.step():
                    self._settle(event)
                steps += 1
                self._admit()
        formed = self._pool.form()
        if isinstance(formed, Finished):
            return None
        if not isinstance(formed, Formed):
            raise StoppedByRule(f"lockstep cannot form batch {self._session.consumed}: {formed.why}")
        return formed

    def _admit(self) -> int:
        admitted = 0
        while self._collector.room():
            ticket = self._pool.admit(WORKER, self._engine.version, time.monotonic())
            if not isinstance(ticket, Ticket):
                break
            self._collector.assign(ticket.slot, ticket.prompt, ticket.attempt)
            admitted += 1
        return admitted

    def _settle(self, event: GroupDone | GroupFailed) -> None:
        if isinstance(event, GroupDone):
            self._pool.deliver(WORKER, event.group)
        else:
            self._pool.fail(WORKER, event.slot, event.attempt, event.reason)

    # ------------------------------------------------------------------------------------------------ weights
    def _publish_newest(self) -> None:
        if not self._options.swap_every:
            self._publish(self._session.version, self._session.weights())

    def _publish(self, version: Version, weights: dict[str, Tensor]) -> None:
        self._times.append(publish(version, weights, [self._engine]))

    def _remember(self) -> None:
        copy = {name: tensor.clone() for name, tensor in self._session.weights().items()}
        self._snapshots.append((self._session.version.number, copy))

    def _start_old(self) -> None:
        number, weights = self._snapshots[0]
        self._publish(Version(self._session.version.incarnation, number), weights)

    def _swap(self, index: int) -> None:
        number, weights = self._snapshots[min(index, len(self._snapshots) - 1)]
        if number != self._engine.version:
            self._publish(Version(self._session.version.incarnation, number), weights)

    def _window(self) -> Window:
        published, self._times = self._times, []
        return Window(published=published)

    # ------------------------------------------------------------------------------------------------ durable state
    def parts(self) -> dict[str, StateTree]:
        """The older weights that swap_every still needs; nothing otherwise."""
        return {"lockstep": [(number, cast(StateTree, weights)) for number, weights in self._snapshots]}

    def restore(self, snapshots: Sequence[tuple[int, Mapping[str, Tensor]]]) -> None:
        self._snapshots.extend((number, dict(weights)) for number, weights in snapshots)
