"""The rollout worker's process: it generates all the time with whatever weights it holds.

    start ── Ready ──▶ [ take messages ─▶ one engine step ─▶ send finished groups ]* ── end of the socket ──▶ exit

Weights are staged and committed between two decode steps. Failure is data: a group that fails is reported, not raised. The
process dies with its parent, whatever it is doing then (:mod:`trimtab.tasks.lifeline`).
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.records import TrimtabError
from trimtab.rollout.collector import GroupDone, Result
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
    ToWorker,
    WorkerSpec,
)
from trimtab.telemetry.clock import Clock
from trimtab.telemetry.logging import configure

if TYPE_CHECKING:  # they bring torch, whose threads the process sets first
    from trimtab.rollout.sampler import Sampler
    from trimtab.tasks.protocol import Task
    from trimtab.weights.shared import SharedBlocks

log = logging.getLogger(__name__)

PULSE_S = 0.25  # the controller learns of room at once and of idle time this often


class Worker:
    """One engine, one verifier, one collector, driven by messages."""

    def __init__(self, spec: WorkerSpec, connection: Connection, blocks: SharedBlocks, sampler: Sampler) -> None:
        self._connection, self._blocks = connection, blocks
        self._input = select.poll()  # connection.poll() makes a selector at every call
        self._input.register(connection, select.POLLIN)
        self._collector, self._engine = sampler.collector, sampler.engine
        self._probe = spec.probe
        self._clock = Clock(keep=spec.timeline)
        self._name, self._origin = spec.name, spec.origin
        self._room = -1  # as last told
        self._assigned = 0
        self._pulsed = time.perf_counter()
        self._cpu = time.process_time()

    def run(self) -> None:
        self._send(Ready(os.getpid(), self._collector.room()))
        while True:
            self._take_messages()
            if self._collector.outstanding:
                with self._clock.span("generate" if self._collector.generating else "verify"):
                    events = self._collector.step()
                for event in events:
                    self._report(event)
            self._pulse()

    def _report(self, event: Result) -> None:
        with self._clock.span("send"):
            if isinstance(event, GroupDone):
                self._send(Done(event.group, self._collector.take_counts()))
            else:
                self._send(Failed(event.slot, event.attempt, event.reason, self._collector.take_counts(), event.retry))

    def _take_messages(self) -> None:
        """Handle what has come; wait a little where there is nothing else to do. EOFError where the controller is gone."""
        if not self._collector.outstanding and not self._input.poll(0):
            with self._clock.span("idle"):
                self._input.poll(1000 * PULSE_S)
        while self._input.poll(0):
            self._handle(self._connection.recv())

    def _handle(self, message: ToWorker) -> None:
        begun = time.perf_counter()
        if isinstance(message, Assign):
            self._assigned += 1
            self._collector.assign(message.slot, message.row, message.attempt)
        elif isinstance(message, Stage):
            with self._clock.span("stage"):
                digest = self._engine.stage(message.version, message.incarnation, self._blocks.read(message.block))
            self._send(Staged(message.version, digest, time.perf_counter() - begun))
        elif isinstance(message, Commit):
            with self._clock.span("swap"):
                self._engine.commit(message.version)
                probe = tuple(float(x) for logp in self._engine.score(self._probe[: message.probes]) for x in logp)
            self._send(Committed(message.version, time.perf_counter() - begun, probe))
        elif isinstance(message, Drop):
            self._collector.cancel(message.slot)

    def _pulse(self) -> None:
        now, room = time.perf_counter(), self._collector.room()
        if room == self._room and now - self._pulsed < PULSE_S:
            return
        lap, cpu = self._clock.lap(), time.process_time()
        idle = lap.wall.get("idle", 0.0)
        intervals = tuple(self._clock.take(self._name, self._origin))
        busy = max(0.0, lap.elapsed - idle)
        self._send(Pulse(room=room, assigned=self._assigned, busy=busy, idle=idle, cpu=cpu - self._cpu, intervals=intervals))
        self._room, self._pulsed, self._cpu = room, now, cpu

    def _send(self, message: FromWorker) -> None:
        self._connection.send(message)


def enter(socket_fd: int) -> tuple[Connection, WorkerSpec]:
    """What every child does first: leave Ctrl-C to its parent, log to the run's file, one thread or as told."""
    connection = Connection(socket_fd)
    # Ctrl-C reaches the whole foreground group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec: WorkerSpec = connection.recv()
    configure("INFO", Path(spec.log) if spec.log else None, spec.name)
    import torch

    torch.set_num_threads(spec.threads)
    return connection, spec


def same_data(task: Task, spec: WorkerSpec) -> None:
    """Raises TrimtabError where this process, which may have started long after the run, has read other data than the learner."""
    found = {field: digest for field, (_, digest) in task.data.digests.items()}
    changed = [f"{field} = {name!r}" for field, (name, digest) in spec.data.items() if found[field] != digest]
    if changed:
        what = "it has changed since the run began; put back what it was and go on with trimtab resume"
        raise TrimtabError(f"{' and '.join(changed)}: {what}")


@contextmanager
def told(connection: Connection) -> Iterator[None]:
    """The end of the socket ends the process quietly; an error is told to the parent, and the process ends with code 1."""
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError):
        log.info("the learner's process is gone")
    except TrimtabError as error:
        _tell(connection, Broken(str(error), error.exit_code))
        raise SystemExit(1) from None
    except Exception as error:
        # Perhaps this process's own trouble (memory, a broken device): a fresh one may do better.
        log.exception("broke")
        _tell(connection, Broken(f"{type(error).__name__}: {error}", 0))
        raise SystemExit(1) from None


def _tell(connection: Connection, message: Broken) -> None:
    with suppress(OSError):
        connection.send(message)


def main() -> None:
    """``python -m trimtab.rollout.worker SOCKET WEIGHTS`` (file descriptors)."""
    connection, spec = enter(int(sys.argv[1]))
    with told(connection):
        from trimtab.engines.checkpoint import load_policy
        from trimtab.rollout.sampler import Sampler
        from trimtab.weights.shared import SharedBlocks

        assert spec.layout is not None
        blocks = SharedBlocks(int(sys.argv[2]), spec.layout)
        sampler = Sampler.build(
            lambda: load_policy(spec.model),
            task=spec.task,
            verifier=spec.verifier,
            rollout=spec.rollout,
            engine=spec.engine,
            seed=spec.seed,
            rescore=spec.rescore,
        )
        same_data(sampler.task, spec)
        gc.freeze()  # full collections leave out what the imports have built
        with closing(sampler):
            Worker(spec, connection, blocks, sampler).run()


if __name__ == "__main__":
    main()
