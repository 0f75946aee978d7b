"""The rollout worker's loop on a real socket, and its process: what it answers, what it does between, how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice

import psutil
import pytest
import torch

from support.near_worker import Faults, NearWorker, spec
from trimtab.engines.digest import weights_digest
from trimtab.records import Slot, StoppedByRule
from trimtab.rollout.launch import WorkerProcess
from trimtab.rollout.messages import Assign, Broken, Commit, Committed, Done, Drop, Failed, FromWorker, Pulse, Ready, Stage, Staged
from trimtab.rollout.verdict_counts import VerdictCounts
from trimtab.weights.shared import SharedBlocks


class Talk:
    """One side of a conversation with a worker in a thread."""

    def __init__(self) -> None:
        self.blocks = SharedBlocks.create({"w": torch.arange(8.0)})
        self.blocks.write(0, {"w": torch.ones(8)})
        self.faults = Faults()
        self.worker = NearWorker("worker-0", self.blocks, self.faults)
        self.heard: list[FromWorker] = []

    def until(self, kind: type, count: int = 1) -> list[FromWorker]:
        """Listen until ``count`` messages of this kind have come; they."""
        end = time.monotonic() + 10
        while len(found := [m for m in self.heard if isinstance(m, kind)]) < count:
            assert time.monotonic() < end, self.heard
            self.heard += islice(self.worker.messages(0.1), 1)
        return found

    def serve(self, version: int) -> None:
        self.worker.send(Stage(version, 0, 0))
        self.worker.send(Commit(version, 1))


@pytest.fixture
def talk() -> Iterator[Talk]:
    talk = Talk()
    yield talk
    talk.worker.kill()
    talk.blocks.close()


def test_it_answers_a_stage_with_the_digest_and_a_commit_with_the_probe(talk: Talk) -> None:
    [ready] = talk.until(Ready)
    assert ready == Ready(os.getpid(), 4)
    talk.faults.probe = -2.5
    talk.serve(3)
    [staged], [committed] = talk.until(Staged), talk.until(Committed)
    assert isinstance(staged, Staged)
    assert (staged.version, staged.digest) == (3, weights_digest({"w": torch.ones(8)}))
    assert isinstance(committed, Committed)
    assert (committed.version, committed.probe) == (3, (-2.5,))
    assert 0 < committed.pause < 1


def test_its_room_counts_what_it_has_taken(talk: Talk) -> None:
    talk.serve(0)
    talk.faults.go.clear()
    for i in range(4):
        talk.worker.send(Assign(Slot(0, i), i, 0))
    time.sleep(0.1)
    talk.faults.go.set()
    done = talk.until(Done, 4)
    assert {m.group.slot.index for m in done if isinstance(m, Done)} == {0, 1, 2, 3}
    last = talk.until(Pulse, 2)[-1]
    while not (isinstance(last, Pulse) and last.room == 4):
        talk.heard.clear()
        last = talk.until(Pulse)[-1]
    assert last.assigned == 4


def test_a_dropped_group_never_comes(talk: Talk) -> None:
    talk.serve(0)
    talk.faults.go.clear()
    for i in range(3):
        talk.worker.send(Assign(Slot(0, i), i, 0))
    talk.worker.send(Drop(Slot(0, 1)))
    talk.faults.go.set()
    talk.until(Done, 2)
    talk.worker.send(Assign(Slot(0, 9), 9, 0))
    assert [m.group.slot.index for m in talk.until(Done, 3) if isinstance(m, Done)][2] == 9


def test_a_prompt_that_cannot_be_had_is_reported_not_raised(talk: Talk) -> None:
    talk.serve(0)
    talk.worker.send(Assign(Slot(1, 2), 13, 2))
    assert talk.until(Failed) == [Failed(Slot(1, 2), 2, "row 13 cannot be had", VerdictCounts(), retry=False)]


@pytest.mark.parametrize(("error", "code"), [(ValueError("odd"), 0), (StoppedByRule("enough"), 3)])
def test_what_ends_it_is_told_first(talk: Talk, error: Exception, code: int) -> None:
    talk.serve(0)
    talk.faults.raises = error
    talk.worker.send(Assign(Slot(0, 0), 0, 0))
    assert talk.until(Broken) == [Broken("ValueError: odd" if code == 0 else "enough", code)]
    with pytest.raises((EOFError, OSError)):
        talk.until(Done)


def test_it_reports_its_time(talk: Talk) -> None:
    talk.serve(0)
    talk.until(Pulse, 3)
    pulses = [m for m in talk.heard if isinstance(m, Pulse)]
    assert sum(p.idle for p in pulses) > 0
    talk.worker.send(Assign(Slot(0, 0), 0, 0))
    talk.until(Done)
    talk.heard.clear()
    assert sum(p.busy for p in talk.until(Pulse, 2) if isinstance(p, Pulse)) > 0


# ------------------------------------------------------------------------------------------------------------- the process


OWNER = """
import sys, time
import torch
from support.near_worker import spec
from trimtab.rollout.launch import WorkerProcess
from trimtab.weights.shared import SharedBlocks
blocks = SharedBlocks.create({"w": torch.arange(8.0)})
worker = WorkerProcess(spec("worker-0", blocks), blocks.fd)
sys.stdout.write(f"{worker.pid}\\n")
sys.stdout.flush()
time.sleep(3600)
"""


@pytest.mark.parametrize("after_s", [0.0, 0.3])
def test_it_dies_with_its_parent_even_while_it_starts(after_s: float) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert owner.stdout is not None
    with owner:
        worker = psutil.Process(int(owner.stdout.readline()))
        time.sleep(after_s)
        owner.kill()
    end = time.monotonic() + 5
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, "it lives on"
        time.sleep(0.02)


def test_a_start_that_fails_is_one_sentence_and_leaves_nothing() -> None:
    blocks = SharedBlocks.create({"w": torch.arange(8.0)})
    before = psutil.Process().num_fds()
    worker = WorkerProcess(spec("worker-0", blocks), blocks.fd)  # its task has no file
    said = next(worker.messages(120.0))
    assert isinstance(said, Broken)
    assert said.exit_code == 2
    assert said.reason.startswith("task.path = '': cannot be read")
    assert worker.end() == "exit code 1"
    assert psutil.Process().num_fds() == before
    blocks.close()


def test_how_it_ended_is_said_in_words() -> None:
    blocks = SharedBlocks.create({"w": torch.arange(8.0)})
    worker = WorkerProcess(spec("worker-0", blocks), blocks.fd)
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.end() == "killed by signal 15"
    worker.kill()  # again, to no effect
    blocks.close()


def test_a_process_that_is_gone_before_it_is_spoken_to_is_found_so() -> None:
    blocks = SharedBlocks.create({"w": torch.arange(8.0)})
    worker = WorkerProcess(spec("worker-0", blocks), blocks.fd)
    worker.interrupt()
    worker.process.wait()
    with pytest.raises(OSError):
        worker.send(Drop(Slot(0, 0)))
    with pytest.raises((EOFError, OSError)):
        list(worker.messages())
    worker.kill()
    blocks.close()
