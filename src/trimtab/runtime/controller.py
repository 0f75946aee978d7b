"""The local runtime's controller: a thread beside the learner that owns the pool and talks to the workers.

::

    learner thread                 controller thread                                  worker processes
    ──────────────                 ─────────────────                                  ────────────────
    take()  ◀───────── batch ───── pool.form   ◀── pool.deliver ◀─────── Done ─────── collector.step
    consumed(v) ────────────────▶  pool.consumed
    publish(v) ──── block ───────▶ Stage ───────────────────────────────────────────▶ engine.stage
                                   all digests equal? ◀───────────────── Staged ───── (old version serves)
                                   Commit ──────────────────────────────────────────▶ engine.commit, probe
                                   probe within the gap? ◀────────────── Committed
                                   pool.admit(worker, held) ───────────── Assign ───▶ collector.assign

=========================  ===================================  =============================================
who waits                  for what                             who wakes it, and what ends the wait otherwise
=========================  ===================================  =============================================
learner in ``take``        enough finished groups               a delivery; ``progress_deadline_s`` names the stragglers
learner in ``publish``     the block of the publication before  its last ``Committed``; ``publish_deadline_s`` names the worker
controller                 a message, or the learner's call     either; at most ``TICK_S``
worker                     a message (when it has no groups)    the controller; the end of the socket ends the worker
=========================  ===================================  =============================================

A dead worker's slots are first in line again; it is replaced ``restarts`` times in all, then the run stops and names it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

import numpy as np
from torch import Tensor

from trimtab.config.run import LocalOptions
from trimtab.engines.digest import weights_digest
from trimtab.pool.pool import Pool
from trimtab.pool.results import Delivery, Fate, Finished, Formed, Ticket, Waiting
from trimtab.records import Segment, StoppedByRule, TrimtabError, Version
from trimtab.rollout.launch import WorkerProcess
from trimtab.rollout.messages import (
    Assign,
    Broken,
    Commit,
    Committed,
    Done,
    Drop,
    Failed,
    FromWorker,
    Pulse,
    Ready,
    Stage,
    Staged,
    Stop,
    ToWorker,
    WorkerSpec,
)
from trimtab.runtime.session import Window
from trimtab.weights.publish import Phase, Publication, PublishError
from trimtab.weights.shared import SharedBlocks

log = logging.getLogger(__name__)

TICK_S = 0.1  # longest sleep of the controller: deadlines are checked this often
GRACE_S = 5.0  # a worker told to stop has this long before it is killed


@dataclass(slots=True)
class _Worker:
    spec: WorkerSpec
    process: WorkerProcess
    started: float
    ready: bool = False
    room: int = 0
    held: int = -1  # version it has told us it serves
    assigned: int = 0


@dataclass(slots=True)
class _Outgoing:
    """The publication under way: which block, what the probe must say."""

    publication: Publication
    block: int
    probe: tuple[float, ...]
    committing: bool = False


class Controller(threading.Thread):
    """All state is under one lock; ``_changed`` wakes the learner."""

    def __init__(
        self,
        pool: Pool,
        options: LocalOptions,
        make_spec: Callable[[str], WorkerSpec],
        blocks: SharedBlocks,
        probe: Segment,
        gap: float,
    ) -> None:
        super().__init__(name="controller", daemon=True)
        self._pool, self._options, self._make_spec, self._blocks = pool, options, make_spec, blocks
        self._probe, self._gap = probe, gap
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._workers: dict[str, _Worker] = {}
        self._outgoing: _Outgoing | None = None
        self._served: tuple[Version, int, tuple[float, ...], str] | None = None  # version, block, probe, digest last published
        self._error: TrimtabError | None = None
        self._closing = False
        self._restarts = 0
        self._window = Window()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self.probe_gap = 0.0  # largest seen

    # ------------------------------------------------------------------------------------------------ the learner's calls
    def take(self, deadline_s: float, stopping: Callable[[], bool]) -> Formed | None:
        """The next batch; None at the end of the plan or when ``stopping``. Raises where no group arrives within the deadline."""
        until = time.monotonic() + deadline_s
        with self._changed:
            arrived = self._pool.facts(time.monotonic()).counts
            while True:
                self._raise()
                if stopping():
                    return None
                formed = self._pool.form()
                if isinstance(formed, Finished):
                    return None
                if isinstance(formed, Formed):
                    return formed
                self._wake()
                self._changed.wait(TICK_S)
                counts = self._pool.facts(time.monotonic()).counts
                if counts != arrived:
                    arrived, until = counts, time.monotonic() + deadline_s
                if time.monotonic() > until:
                    raise self._starved(formed, deadline_s)

    def _starved(self, waiting: Waiting, deadline_s: float) -> StoppedByRule:
        waits = "; ".join(self._pool.facts(time.monotonic()).waits) or waiting.why
        return StoppedByRule(f"nothing has moved for {deadline_s:g} s (runtime.progress_deadline_s): {waits}")

    def consumed(self, version: int) -> None:
        """The batch in hand is trained; called through :class:`Pool` under the lock."""
        with self._changed:
            self._pool.consumed(version)

    def publish(self, version: Version, weights: Mapping[str, Tensor], probe: tuple[float, ...]) -> None:
        """Write the weights into the free block and start the two phases; waits only for the publication before."""
        with self._changed:
            until = time.monotonic() + self._options.publish_deadline_s
            while self._outgoing is not None:
                self._raise()
                if time.monotonic() > until:
                    self._outgoing.publication.expire(float("inf"))
                self._changed.wait(TICK_S)
            self._raise()
            block = 0 if self._served is None else 1 - self._served[1]
            self._blocks.write(block, weights)
            digest = weights_digest(self._blocks.read(block))
            now = time.perf_counter()
            ready = frozenset(name for name, w in self._workers.items() if w.ready)
            publication = Publication(version, digest, ready, now, now + self._options.publish_deadline_s)
            self._outgoing = _Outgoing(publication, block, probe)
            self._served = (version, block, probe, digest)
            for name in ready:
                self._send(self._workers[name], Stage(version.number, version.incarnation, block))
            self._settle()
        self._wake()

    def window(self) -> Window:
        """What the workers have reported since the last call."""
        with self._lock:
            window, self._window = self._window, Window()
            return window

    def waiting_for(self) -> str:
        """Who waits for whom, in a sentence; "" where nobody does."""
        with self._lock:
            waits = self._pool.facts(time.monotonic()).waits
            return waits[0] if waits else ""

    def locked(self) -> threading.Lock:
        """Held while the pool is read for a checkpoint."""
        return self._lock

    def wait_ready(self) -> None:
        """Start-up barrier: every worker is up and serves the version published first."""
        until = time.monotonic() + self._options.start_deadline_s
        with self._changed:
            while any(not w.ready or w.held < 0 for w in self._workers.values()):
                self._raise()
                if time.monotonic() > until:
                    late = ", ".join(name for name, w in self._workers.items() if not w.ready or w.held < 0)
                    raise StoppedByRule(f"{late} did not come up within runtime.start_deadline_s = {self._options.start_deadline_s:g} s")
                self._changed.wait(TICK_S)
            self._raise()

    def close(self) -> None:
        """Stop the workers: politely, then for good. No process survives this call."""
        with self._changed:
            self._closing = True
        self._wake()
        if self.is_alive():
            self.join()
        for worker in self._workers.values():
            with suppress(OSError):
                worker.process.send(Stop())
        until = time.monotonic() + GRACE_S
        for worker in self._workers.values():
            worker.process.wait(max(0.0, until - time.monotonic()))
            worker.process.kill()
        self._workers.clear()
        self._blocks.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def pids(self) -> dict[str, int]:
        with self._lock:
            return {name: w.process.pid for name, w in self._workers.items()}

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    # ------------------------------------------------------------------------------------------------ the thread
    def launch(self) -> None:
        """Start the workers and the thread."""
        for i in range(self._options.workers):
            self._spawn(f"worker-{i}")
        self.start()

    def _spawn(self, name: str) -> None:
        spec = self._make_spec(name)
        self._workers[name] = _Worker(spec, WorkerProcess(spec, self._blocks.fd), time.monotonic())
        log.info("%s started as process %d", name, self._workers[name].process.pid)

    def run(self) -> None:
        try:
            while self._turn():
                pass
        except TrimtabError as error:
            self._fail(error)
        except Exception as error:
            # The learner must hear of it, or it would wait for a thread that is gone.
            log.exception("controller broke")
            self._fail(StoppedByRule(f"the controller broke: {type(error).__name__}: {error}"))

    def _fail(self, error: TrimtabError) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _turn(self) -> bool:
        with self._lock:
            connections = {w.process.connection: name for name, w in self._workers.items()}
        found = wait([*connections, self._wake_read], TICK_S)
        if self._wake_read in found:
            os.read(self._wake_read, 4096)
        with self._changed:
            if self._closing:
                return False
            for connection in found:
                if isinstance(connection, Connection):
                    self._receive(connections[connection])
            self._deadlines()
            self._settle()
            self._admit()
            self._changed.notify_all()
        return True

    def _receive(self, name: str) -> None:
        worker = self._workers.get(name)
        if worker is None:
            return
        try:
            while worker.process.connection.poll():
                self._handle(name, worker, worker.process.connection.recv())
        except (EOFError, ConnectionResetError, OSError):
            self._died(name, worker, "")

    def _handle(self, name: str, worker: _Worker, message: FromWorker) -> None:
        now = time.perf_counter()
        outgoing = self._outgoing
        if isinstance(message, Ready):
            worker.ready, worker.room = True, message.room
            self._catch_up(worker)
        elif isinstance(message, Pulse):
            worker.room = message.room - (worker.assigned - message.assigned)
            self._window.busy += message.busy
            self._window.idle += message.idle
            self._window.cpu += message.cpu
            self._window.intervals.extend(message.intervals)
        elif isinstance(message, Done):
            self._log(name, self._pool.deliver(name, message.group))
        elif isinstance(message, Failed):
            self._log(name, self._pool.fail(name, message.slot, message.attempt, message.reason))
        elif isinstance(message, Staged):
            if outgoing is not None and outgoing.publication.version.number == message.version:
                outgoing.publication.staged(name, message.digest, message.seconds, now)
            elif self._served is not None and self._served[0].number == message.version:
                self._attest_digest(name, message.digest)
                self._send(worker, Commit(message.version, self._probe))
        elif isinstance(message, Committed):
            self._attest_probe(name, message)
            worker.held = message.version
            if outgoing is not None and outgoing.publication.version.number == message.version:
                outgoing.publication.committed(name, message.pause, now)
        elif isinstance(message, Broken):
            if message.fatal:
                raise TrimtabError(f"{name}: {message.reason}")
            self._died(name, worker, message.reason)

    def _log(self, name: str, delivery: Delivery) -> None:
        if delivery.fate in (Fate.RETRIED, Fate.FAILED, Fate.REFUSED):
            log.warning("%s: slot %s %s: %s", name, delivery.slot, delivery.fate.value, delivery.reason)

    # ------------------------------------------------------------------------------------------------ weights
    def _settle(self) -> None:
        """Move the publication on: commit once every digest agreed, forget it once every replica serves it."""
        outgoing = self._outgoing
        if outgoing is None:
            return
        phase = outgoing.publication.phase
        if phase is not Phase.STAGED and not outgoing.committing:
            outgoing.committing = True
            for name in outgoing.publication.replicas:
                self._send(self._workers[name], Commit(outgoing.publication.version.number, self._probe))
        if outgoing.publication.phase is Phase.DONE:
            self._window.published.append(outgoing.publication.times)
            self._outgoing = None
            self._changed.notify_all()

    def _catch_up(self, worker: _Worker) -> None:
        """A worker that came up after a publication stages the block of the newest one on its own."""
        if self._served is not None:
            version, block, _, _ = self._served
            self._send(worker, Stage(version.number, version.incarnation, block))

    def _attest_digest(self, name: str, digest: str) -> None:
        assert self._served is not None
        if digest != self._served[3]:
            raise PublishError(f"weights = {self._served[0]}: {name} staged other bytes than the learner sent; check the transport")

    def _attest_probe(self, name: str, message: Committed) -> None:
        """The worker's log-probs of the probe against the learner's, under the same weights."""
        if self._served is None or self._served[0].number != message.version or not message.probe:
            return
        gap = float(np.max(np.abs(np.array(message.probe) - np.array(self._served[2]))))
        self.probe_gap = max(self.probe_gap, gap)
        if not gap <= self._gap:
            raise PublishError(
                f"learner.probe_gap = {self._gap:g}: {name} and learner differ by {gap:.2e} in log-prob under version {message.version}; "
                "use the same dtype in engine and learner, or allow a larger gap"
            )

    # ------------------------------------------------------------------------------------------------ workers
    def _admit(self) -> None:
        """Give groups to workers with room, turn about, so that they share what admission allows."""
        now = time.monotonic()
        open_ = [w for w in self._workers.values() if w.ready and w.held >= 0]
        while open_:
            for worker in list(open_):
                ticket = self._pool.admit(worker.spec.name, worker.held, now) if worker.room > 0 else None
                if not isinstance(ticket, Ticket):
                    open_.remove(worker)
                    continue
                worker.room -= 1
                worker.assigned += 1
                self._send(worker, Assign(ticket.slot, ticket.prompt, ticket.attempt))

    def _deadlines(self) -> None:
        now = time.monotonic()
        for late in self._pool.expire(now):
            log.warning("slot %s failed: straggler_deadline_s passed", late)
            if late.worker in self._workers:
                self._send(self._workers[late.worker], Drop(late.slot))
        if self._outgoing is not None:
            self._outgoing.publication.expire(time.perf_counter())
        for name, worker in list(self._workers.items()):
            if not worker.ready and now - worker.started > self._options.start_deadline_s:
                raise StoppedByRule(f"{name} did not report ready within runtime.start_deadline_s = {self._options.start_deadline_s:g} s")

    def _died(self, name: str, worker: _Worker, reason: str) -> None:
        code = worker.process.kill()
        del self._workers[name]
        slots = self._pool.lost(name)
        if self._outgoing is not None:
            self._outgoing.publication.lost(name, time.perf_counter())
        why = reason or (f"killed by signal {-code}" if code < 0 else f"exit code {code}")
        log.warning("%s died (%s); %d groups return to the line", name, why, len(slots))
        if self._restarts >= self._options.restarts:
            raise StoppedByRule(f"{name} died ({why}) after {self._restarts} restarts (runtime.restarts); see run.log in the run folder")
        self._restarts += 1
        self._spawn(name)

    def _send(self, worker: _Worker, message: ToWorker) -> None:
        # A dead worker is noticed where its socket ends; what was sent to it is lost with it.
        with suppress(OSError):
            worker.process.send(message)
