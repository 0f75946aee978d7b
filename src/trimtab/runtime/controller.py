"""The local runtime's controller: a thread beside the learner that moves the pool and talks to the workers.

::

    learner thread                 controller thread                                  worker processes
    ──────────────                 ─────────────────                                  ────────────────
    take()  ◀───────── batch ───── pool.form   ◀── pool.deliver ◀─────── Done ─────── collector.step
    pool.consumed(v)
    publish(v) ──── block ───────▶ Stage ───────────────────────────────────────────▶ engine.stage
                                   all digests equal? ◀───────────────── Staged ───── (old version serves)
                                   Commit ──────────────────────────────────────────▶ engine.commit, probe
                                   probe within the gap? ◀────────────── Committed
                                   pool.admit(worker, held) ───────────── Assign ───▶ collector.assign

=========================  ===================================  ==============================================
who waits                  for what                             who wakes it, and what ends the wait otherwise
=========================  ===================================  ==============================================
learner in ``take``        enough finished groups               a delivery; ``progress_deadline_s`` names the stragglers
learner in ``publish``     the publication before               its last ``Committed``; ``publish_deadline_s`` names the worker
learner in ``wait_ready``  every worker serves a version        likewise; ``start_deadline_s`` names the worker
controller                 a message, or the learner's call     either; at most ``TICK_S``
worker                     a message (when it has no groups)    the controller; the end of the socket ends the worker
=========================  ===================================  ==============================================

A dead worker's slots are first in line again; it is replaced ``restarts`` times in all, then the run stops and names it. Whatever
goes wrong in the controller's thread ends it, and is raised by the learner's next call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from trimtab.config.run import LocalOptions
from trimtab.pool.pool import Pool
from trimtab.pool.results import Delivery, Fate, Finished, Formed, NotYet, Ticket
from trimtab.records import Group, StoppedByRule, TrimtabError, Version
from trimtab.rollout.launch import WorkerProcess
from trimtab.rollout.messages import Assign, Broken, Committed, Done, Drop, Failed, FromWorker, Pulse, Ready, Staged
from trimtab.rollout.verdict_counts import VerdictCounts
from trimtab.runtime.crew import Crew, CrewMember, Gone
from trimtab.runtime.fates import FateLog
from trimtab.runtime.publisher import Publisher
from trimtab.runtime.rescore import Rescore
from trimtab.runtime.session import SamplerWindow
from trimtab.weights.shared import SharedBlocks

log = logging.getLogger(__name__)

TICK_S = 0.1  # longest sleep of the controller and of a waiting learner: deadlines and signals are seen this often


class Controller(threading.Thread):
    """``lock`` guards the pool, the crew and the publisher, and whoever else touches the pool holds it; ``_changed`` wakes the learner."""

    def __init__(
        self,
        pool: Pool,
        options: LocalOptions,
        launch: Callable[[str], WorkerProcess],
        blocks: SharedBlocks,
        probe_gap: float,
        lock: threading.Lock,
        rescore: Rescore | None = None,
    ) -> None:
        super().__init__(name="controller", daemon=True)
        self._pool, self._options, self._rescore = pool, options, rescore
        self._crew = Crew(options, launch)
        self._publisher = Publisher(self._crew, blocks, options.publish_deadline_s, probe_gap)
        self.lock = lock
        self._changed = threading.Condition(self.lock)
        self._window = SamplerWindow()
        self._fates = FateLog()
        self._arrived = 0  # groups that came back, finished or failed
        self._error: TrimtabError | None = None
        self._closing = False

    # ------------------------------------------------------------------------------------------------ the learner's calls
    def launch(self) -> None:
        """Start the workers and the thread."""
        self._crew.start()
        self.start()

    def wait_ready(self, stopping: Callable[[], bool]) -> None:
        """Start-up barrier: every worker serves the version published first, or ``stopping``."""
        with self._changed:
            while any(member.held < 0 for member in self._crew) and not stopping():
                self._sleep()

    def take(self, stopping: Callable[[], bool]) -> Formed | None:
        """The next batch; None at the end of the plan or when ``stopping``.

        Raises :class:`StoppedByRule`, naming who is waited for, where no group comes back for ``progress_deadline_s``.
        """
        self._crew.wake()  # a batch may have been consumed without a publication
        arrived, since = -1, 0.0
        while not stopping():
            with self._changed:
                self._raise()
                if not (unscored := self._unscored()):
                    formed = self._pool.form()
                    if isinstance(formed, Formed):
                        return formed
                    if isinstance(formed, Finished):
                        return None
                    if self._arrived != arrived:
                        arrived, since = self._arrived, time.monotonic()
                    if time.monotonic() - since > self._options.progress_deadline_s:
                        raise self._starved(formed)
                    self._sleep()
            if unscored and self._rescore is not None:
                scored = self._rescore(unscored)  # without the lock: groups come in meanwhile
                with self.lock:
                    for group in scored:
                        self._pool.rescored(group)
        return None

    def _unscored(self) -> list[Group]:
        """The groups that have arrived of which the learner was asked to score something and has not."""
        return self._pool.unscored() if self._rescore is not None else []

    def _starved(self, waiting: NotYet) -> StoppedByRule:
        waits = "; ".join(self._pool.facts(time.monotonic()).waits) or waiting.why
        return StoppedByRule(
            f"runtime.progress_deadline_s = {self._options.progress_deadline_s:g}: no group came back in that time: {waits}"
        )

    def publish(
        self,
        version: Version,
        weights: Mapping[str, Tensor],
        probe: Sequence[Sequence[float]],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start to bring the weights to the workers; waits only for the publication before. When ``stopping`` nobody needs them any more.

        ``probe``: what the learner says of the first segments of the probe, under these weights.
        """
        self._wait_published(stopping)
        if stopping():
            return
        prepared = self._publisher.prepare(version, weights, probe)  # without the lock: groups come in meanwhile
        with self._changed:
            while not self._publisher.idle:  # a worker has come up meanwhile
                self._sleep()
            self._publisher.publish(prepared)
        self._crew.wake()

    def _wait_published(self, stopping: Callable[[], bool]) -> None:
        with self._changed:
            while not self._publisher.idle and not stopping():
                self._sleep()
            self._raise()

    def window(self) -> SamplerWindow:
        """What the workers have reported since the last call."""
        with self.lock:
            self._window.published, self._publisher.done = self._publisher.done, []
            window, self._window = self._window, SamplerWindow()
            return window

    def waiting_for(self) -> str:
        """Who waits for whom, in a sentence; "" where nobody does."""
        with self.lock:
            waits = self._pool.facts(time.monotonic()).waits
            return waits[0] if waits else ""

    def close(self) -> None:
        """End the thread and the workers. No process survives this call."""
        self._closing = True
        self._crew.wake()
        if self.is_alive():
            self.join()
        self._crew.close()

    def _sleep(self) -> None:
        """Let the controller work until it has news. Raises what went wrong there."""
        self._raise()
        self._changed.wait(TICK_S)
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    # ------------------------------------------------------------------------------------------------ the thread
    def run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except TrimtabError as error:
            self._fail(error)
        except Exception as error:
            # The learner must hear of it, or it would wait for a thread that is gone.
            log.exception("controller broke")
            self._fail(StoppedByRule(f"the controller broke: {type(error).__name__}: {error}; see run.log in the run folder"))

    def _fail(self, error: TrimtabError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _turn(self) -> None:
        heard = self._crew.listen(TICK_S)
        with self._changed:
            for member, message in heard:
                if self._crew.get(member.name) is member:  # not replaced meanwhile
                    self._handle(member, message)
            self._check_deadlines()
            self._admit()
            if any(not isinstance(message, Pulse) for _, message in heard):
                self._changed.notify_all()

    def _handle(self, member: CrewMember, message: FromWorker | Gone) -> None:
        match message:
            case Done(group, counts):
                self._returned(member, self._pool.deliver(member.name, group), counts)
            case Failed(slot, attempt, reason, counts, retry):
                self._returned(member, self._pool.fail(member.name, slot, attempt, reason, retry=retry), counts, retry=retry)
            case Pulse():
                member.heard(message)
                self._window.busy += message.busy
                self._window.idle += message.idle
                self._window.cpu += message.cpu
                self._window.intervals.extend(message.intervals)
            case Ready():
                member.ready, member.room = True, message.room
                self._publisher.welcome(member)
            case Staged():
                self._publisher.staged(member, message)
            case Committed():
                self._publisher.committed(member, message)
            case Broken(reason, exit_code):
                if exit_code:
                    raise message.error(member.name)
                self._lost(member, reason)
            case Gone():
                self._lost(member)

    def _returned(self, member: CrewMember, delivery: Delivery, counts: VerdictCounts, *, retry: bool = True) -> None:
        self._arrived += 1
        self._window.verdicts.add(counts)
        self._window.given_up += delivery.fate is Fate.FAILED
        self._fates.note(member.name, delivery, retry=retry)

    def _lost(self, member: CrewMember, why: str = "") -> None:
        self._pool.lost(member.name)
        self._publisher.lost(member)
        self._crew.replace(member, why)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for late in self._pool.expire(now):
            log.warning("slot %s failed: runtime.straggler_deadline_s = %g has passed", late, self._options.straggler_deadline_s)
            member = self._crew.get(late.worker)
            if member is not None:
                self._crew.send(member, Drop(late.slot))
        self._publisher.check_deadlines()
        self._crew.check_started(now)

    def _admit(self) -> None:
        """Give groups to workers with room, turn about, so that they share what admission allows."""
        now = time.monotonic()
        able = [member for member in self._crew if member.held >= 0]
        while able:
            for member in list(able):
                ticket = self._pool.admit(member.name, member.held, now) if member.room > 0 else None
                if isinstance(ticket, Ticket):
                    member.room -= 1
                    member.assigned += 1
                    self._crew.send(member, Assign(ticket.slot, ticket.prompt, ticket.attempt))
                else:
                    able.remove(member)
