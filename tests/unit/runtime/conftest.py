"""A controller over near workers: real pool, real shared blocks, real worker loops, no processes."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import torch

from support.near_worker import OPTIONS, Faults, NearWorker
from trimtab.config.run import LocalOptions
from trimtab.pool.options import LagOptions, PoolOptions
from trimtab.pool.plan import Plan
from trimtab.pool.pool import Pool
from trimtab.pool.results import Formed
from trimtab.records import Version
from trimtab.runtime.controller import Controller
from trimtab.weights.shared import SharedBlocks


class Loop:
    """What the learner's thread does, without learning. ``faults[name]`` is what is wrong with a worker of that name."""

    def __init__(self, batches: int = 20, *, max_attempts: int = 3, **options: object) -> None:
        settings = {"max_lag": 3, "progress_deadline_s": 20.0, "publish_deadline_s": 20.0, "start_deadline_s": 20.0} | options
        self.options = LocalOptions.model_validate(settings)
        fields = {name: getattr(self.options, name) for name in LagOptions.model_fields}
        self.plan = Plan(seed=0, prompts=13, batch_groups=OPTIONS.prompts_per_batch, batches=batches)  # row 13 of the task is poison
        self.pool = Pool(PoolOptions(max_attempts=max_attempts, **fields), self.plan, group_size=OPTIONS.group_size)
        self.weights = {"w": torch.zeros(100)}
        self.blocks = SharedBlocks.create(self.weights)
        self.faults: dict[str, Faults] = {f"worker-{i}": Faults() for i in range(self.options.workers)}
        self.workers: list[NearWorker] = []
        self.controller = Controller(self.pool, self.options, self.launch, self.blocks, 1e-3, threading.Lock())
        self.version = Version(0, 0)
        self.trained: list[Formed] = []

    def launch(self, name: str) -> NearWorker:
        worker = NearWorker(name, self.blocks, self.faults[name])
        self.workers.append(worker)
        return worker

    def start(self) -> None:
        self.controller.launch()
        self.publish()
        self.controller.wait_ready(lambda: False)

    def publish(self) -> None:
        self.weights["w"].fill_(self.version.number)
        self.controller.publish(self.version, self.weights, [[0.0]])

    def batch(self, applied: bool = True) -> bool:
        formed = self.controller.take(lambda: False)
        if formed is None:
            return False
        self.trained.append(formed)
        with self.controller.lock:
            self.pool.consumed(self.version.number + applied)
        if applied:
            self.version = self.version.next()
            self.publish()
        return True

    def run(self, batches: int = 1000) -> None:
        for _ in range(batches):
            if not self.batch():
                return

    def close(self) -> None:
        for faults in self.faults.values():
            faults.go.set()
            faults.up.set()
        self.controller.close()
        self.blocks.close()


def _descriptors() -> list[str]:
    """What a loop could leave open: sockets, pipes, shared memory. Files that a library opens at first use are not its."""
    gc.collect()
    links = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that listed them
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(link for link in links if link.startswith(("socket:", "pipe:", "/memfd:", "anon_inode:")))


@pytest.fixture
def make_loop() -> Iterator[Callable[..., Loop]]:
    """``make(batches=20, **local options)``; after the test nothing of it may be left: no thread, no descriptor."""
    before, descriptors, shm = threading.active_count(), _descriptors(), set(os.listdir("/dev/shm"))
    loops: list[Loop] = []

    def make(*arguments: int, **options: object) -> Loop:
        loops.append(Loop(*arguments, **options))
        return loops[-1]

    yield make
    for loop in loops:
        loop.close()
    assert (threading.active_count(), _descriptors(), set(os.listdir("/dev/shm"))) == (before, descriptors, shm)
