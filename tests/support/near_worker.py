"""Rollout workers in threads of the test: the real worker loop on a real socket, over a scripted engine that can be made to fail.

They stand in for :class:`trimtab.rollout.launch.WorkerProcess`, start in milliseconds, and hang, die and lie on command.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, cast

import numpy as np
from torch import Tensor

from support.rolling import NearVerifier, Sums
from support.tiny import tiny_tokenizer
from trimtab.engines.options import ScriptedEngineOptions
from trimtab.engines.protocol import Completion
from trimtab.engines.scripted import ScriptedEngine
from trimtab.records import Sampling, Segment, Slot
from trimtab.rollout.collector import Collector
from trimtab.rollout.launch import WorkerProcess
from trimtab.rollout.messages import Stage, WorkerSpec
from trimtab.rollout.options import RolloutOptions
from trimtab.rollout.render import Renderer
from trimtab.rollout.sampler import Sampler
from trimtab.rollout.worker import Worker, told
from trimtab.tasks.options import JsonlOptions, VerifierOptions
from trimtab.weights.shared import SharedBlocks

if TYPE_CHECKING:
    from trimtab.engines.checkpoint import Policy

OPTIONS = RolloutOptions(group_size=2, prompts_per_batch=2, max_new_tokens=6)
logging.getLogger("trimtab").setLevel(logging.ERROR)


@dataclass(slots=True)
class Faults:
    """What is wrong with a worker, now. Events are set by the test, counts are read by it."""

    go: threading.Event = field(default_factory=threading.Event)  # cleared: the next decode step or stage hangs
    up: threading.Event = field(default_factory=threading.Event)  # cleared: it does not report ready
    raises: Exception | None = None  # at the next decode step
    corrupt: bool = False  # answers a stage with another digest
    swallow: set[Slot] = field(default_factory=set)  # groups taken and never heard of again
    probe: float = 0.0  # what it says of the probe
    future: int = 0  # versions by which its tokens claim to be newer than they are
    most: int = 0  # groups it had at once
    held: list[int] = field(default_factory=list)  # versions it served, in order

    def __post_init__(self) -> None:
        self.go.set()
        self.up.set()


class FaultyEngine(ScriptedEngine):
    def __init__(self, faults: Faults) -> None:
        super().__init__(ScriptedEngineOptions(slots=16, vocabulary=17))
        self._faults = faults

    def step(self) -> list[Completion]:
        self._faults.go.wait()
        if self._faults.raises is not None:
            raise self._faults.raises
        done = super().step()
        for completion in done:
            completion.versions[:] += self._faults.future
        return done

    def stage(self, version: int, incarnation: int, weights: Mapping[str, Tensor]) -> str:
        self._faults.go.wait()
        digest = super().stage(version, incarnation, weights)
        return "0" * 32 if self._faults.corrupt else digest

    def commit(self, version: int) -> None:
        super().commit(version)
        self._faults.held.append(version)

    def score(self, segments: object) -> list[np.ndarray]:
        return [np.full(1, self._faults.probe, np.float32)]


class ForgetfulCollector(Collector):
    faults: Faults

    def assign(self, slot: Slot, row: int, attempt: int) -> None:
        if slot not in self.faults.swallow:
            super().assign(slot, row, attempt)
        self.faults.most = max(self.faults.most, self.outstanding)


def sampler(faults: Faults, seed: int = 0) -> Sampler:
    engine, task, verifier = FaultyEngine(faults), Sums(), NearVerifier(seed)
    renderer = Renderer(tiny_tokenizer(), context=64, max_new_tokens=OPTIONS.max_new_tokens, stop_ids=(2,))
    collector = ForgetfulCollector(engine, task, verifier, renderer, OPTIONS, 0)
    collector.faults = faults
    policy = cast("Policy", None)  # nothing here asks for it
    return Sampler(
        policy=policy, engine=engine, task=task, verifier=verifier, renderer=renderer, collector=collector, options=OPTIONS, threshold=1.0
    )


def spec(name: str, blocks: SharedBlocks) -> WorkerSpec:
    probe = Segment(
        tokens=np.zeros(2, np.int32),
        action_mask=np.array([False, True]),
        behavior_logp=np.zeros(2, np.float32),
        versions=np.array([-1, 0], np.int32),
        turn=np.zeros(2, np.int16),
        sampling=Sampling(),
    )
    return WorkerSpec(
        name=name,
        seed=0,
        model="",
        task=JsonlOptions(path=""),
        verifier=VerifierOptions(),
        rollout=OPTIONS,
        engine=ScriptedEngineOptions(),
        layout=blocks.layout,
        probe=(probe,),
        threads=1,
        origin=0.0,
        timeline=True,
        log="",
    )


class NearWorker(WorkerProcess):
    """One of them. ``patience_s``: what ``PATIENCE_S`` is for a process."""

    pid = -1

    def __init__(self, name: str, blocks: SharedBlocks, faults: Faults, patience_s: float = 0.3) -> None:
        ours, theirs = socket.socketpair()
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, int(patience_s * 1e6)))
        self.connection = Connection(ours.detach())
        self._input = select.poll()
        self._input.register(self.connection, select.POLLIN)
        self._theirs, self._faults = Connection(theirs.detach()), faults
        self.sent: list[object] = []
        self.killed = False
        self._mute = threading.Event()
        self.thread = threading.Thread(target=self._serve, args=(spec(name, blocks), blocks), daemon=True)
        self.thread.start()

    def _serve(self, spec: WorkerSpec, blocks: SharedBlocks) -> None:
        self._faults.up.wait()
        try:
            with told(self._theirs):
                Worker(spec, self._theirs, blocks, sampler(self._faults)).run()
        except SystemExit:
            pass
        finally:
            self._theirs.close()

    def half_a_message(self) -> None:
        """Begin a message and stop in the middle of it; nothing else is sent from here on."""
        self._theirs.send = lambda message: self._mute.wait()  # type: ignore[method-assign]
        time.sleep(0.05)  # what it was sending is through
        self._theirs._send(struct.pack("!i", 1000) + b"x" * 10)  # type: ignore[attr-defined]

    def send(self, message: object) -> None:
        self.sent.append(message)
        super().send(message)  # type: ignore[arg-type]

    def interrupt(self) -> None:
        with socket.socket(fileno=os.dup(self.connection.fileno())) as ours:
            ours.shutdown(socket.SHUT_RDWR)

    def end(self) -> str:
        self.kill()
        return "its thread ended"

    def kill(self) -> None:
        if not self.killed:
            self.killed = True
            self.connection.close()
            self._mute.set()
            self._faults.go.set()
            self._faults.up.set()
            self.thread.join(5.0)
            assert not self.thread.is_alive()


def stages(worker: NearWorker) -> list[int]:
    """The versions that a worker was told to stage."""
    return [m.version for m in worker.sent if isinstance(m, Stage)]
