"""Invariant 6 by force: ``kill -9`` of a real local run, ten times the learner and ten times a worker, and ``resume`` until it is done.

After every kill nothing of the run is left: no process, no shared memory, no lock. At the end every slot of the plan was trained
exactly once, by the ledger and by the rollout log, and no token was ever older than ``max_lag``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from support import runs
from trimtab.config.load import to_toml
from trimtab.pool.ledger import Ledger
from trimtab.records import Slot
from trimtab.store import checkpoint, rollout_log
from trimtab.store.jsonl import read_jsonl
from trimtab.store.run_folder import RunFolder

GROUPS, BATCHES, MAX_LAG, PROMPTS = 4, 120, 3, 100
KILLS = 10  # of the learner, and of a worker
IN_WRITE = (1, 3, 4, 6, 8, 9)  # cycles in which the learner is killed when a checkpoint is seen half-written
EARLY = (2, 7)  # cycles in which it is killed while it starts
MARK = "TRIMTAB_CHAOS"

# A disk that takes its time: half of the run is spent inside checkpoint writes.
SLOW_DISK = """
import os, time
def slow(fd, fsync=os.fsync):
    time.sleep(0.004)
    fsync(fd)
os.fsync = slow
"""


class Run:
    """A run folder and the process that now trains in it."""

    def __init__(self, folder: Path) -> None:
        config = runs.config(
            folder,
            ["vcpo"],
            rollout={"max_new_tokens": 8, "prompts_per_batch": GROUPS, "group_size": 4},
            learner={"batches": BATCHES, "optimizer": {"lr": 1e-4}},
            runtime={"kind": "local", "max_lag": MAX_LAG, "restarts": 100, "start_deadline_s": 600.0},
            store={"every": 1, "keep": 2},
            eval={"prompts": 4, "every": 75},
        )
        (folder / "run.toml").write_text(to_toml(config).replace('name = "run"', 'name = "chaos"'))
        (folder / "slow").mkdir()
        (folder / "slow" / "sitecustomize.py").write_text(SLOW_DISK)
        self.cwd, self.path = folder, folder / "runs" / "chaos"
        self.mark = f"{folder.name}-{os.getpid()}"
        tests = Path(runs.__file__).parents[1]
        self.env = {**os.environ, MARK: self.mark, "PYTHONPATH": os.pathsep.join([str(folder / "slow"), str(tests), *sys.path])}
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        again = (self.path / "config.json").exists()
        command = ["resume", str(self.path)] if again else ["train", "run.toml"]
        with open(self.cwd / "output.txt", "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trimtab.cli.main", *command], cwd=self.cwd, env=self.env, stdout=output, stderr=output
            )

    def alive(self) -> bool:
        return self.process.poll() is None

    def standing(self) -> tuple[int, int]:
        """The newest checkpoint and the number of batches logged."""
        metrics = self.path / "metrics.jsonl"
        return max(checkpoint.numbers(self.path / "checkpoints"), default=-1), sum(1 for _ in read_jsonl(metrics))

    def wait(self, condition: Callable[[], bool], within: float = 120.0) -> None:
        until = time.monotonic() + within
        while not condition():
            assert time.monotonic() < until, "not in time"
            time.sleep(0.0005)

    def wait_batches(self, more: int) -> None:
        """Until so many more batches are logged than now, or than after the cut of the resume that is under way."""
        first, deadline = None, time.monotonic() + 300
        while True:
            assert self.alive(), (self.cwd / "output.txt").read_text()[-3000:]
            assert time.monotonic() < deadline, "no progress"
            logged = self.standing()[1]
            first = logged if first is None or logged < first else first  # a resume cuts the log first
            if logged >= first + more:
                return
            time.sleep(0.02)

    def half_written(self) -> bool:
        return any(name.startswith(".tmp-") for name in os.listdir(self.path / "checkpoints"))

    def kill_worker(self) -> int:
        """Kill a rollout worker, wherever it is in its life; the scorer that belongs to it ends with it."""
        self.wait(lambda: bool(self.workers()) or not self.alive(), 30)
        for worker in self.workers():
            children = worker.children(recursive=True)
            worker.kill()
            self.wait(lambda left=children: not any(_lives(p) for p in left), 5)
            return 1
        return 0

    def workers(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self.process.pid).children():
            try:
                if "trimtab.rollout.worker" in child.cmdline():
                    found.append(child)
            except psutil.NoSuchProcess:
                continue
        return found

    def kill_learner(self) -> tuple[bool, float]:
        """Whether that was inside a checkpoint write, and how long the last process of the run lived on."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        begun = time.monotonic()
        hit = (self.path / "checkpoints").is_dir() and self.half_written()
        self.assert_nothing_left()
        return hit, time.monotonic() - begun

    def assert_nothing_left(self) -> None:
        self.wait(lambda: not self.processes(), 8)
        if (self.path / "config.json").exists():
            with RunFolder.open(self.path):  # raises where somebody holds the lock
                pass

    def processes(self) -> list[int]:
        """Every process that this run has started, directly or not, wherever it hangs in the process tree now."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == self.mark:
                    found.append(process.pid)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def assert_trained_exactly_once(self) -> None:
        plan = [Slot(*divmod(i, PROMPTS)) for i in range(BATCHES * GROUPS)]
        state = checkpoint.load_latest(self.path / "checkpoints").parts["pool"]["state"]  # type: ignore[index,call-overload]
        ledger = Ledger()
        ledger.load_state_dict(state["book"]["ledger"])
        assert ledger.trained() == plan
        logged = Counter(group.slot for entry in rollout_log.read(self.path / "rollouts") for group in entry.groups)
        assert logged == Counter(plan)
        records = list(read_jsonl(self.path / "metrics.jsonl"))
        assert [r["batch"] for r in records] == list(range(BATCHES))
        ages = [int(age) for r in records for age in r["ages"]]  # type: ignore[union-attr]
        assert max(ages) <= MAX_LAG
        summary = json.loads((self.path / "summary.json").read_text())
        assert (summary["status"], summary["batches"]) == ("done", BATCHES)
        assert 0 < summary["max_age"] == max(ages)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    if run.alive():
        run.process.kill()


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_kills_lose_nothing_and_leave_nothing(run: Run) -> None:
    rng = random.Random(0)
    shm = set(os.listdir("/dev/shm"))
    table = [("cycle", "learner killed", "in a write", "checkpoint", "batches logged", "worker kills", "gone after s")]
    worker_kills = in_write = 0
    for cycle in range(KILLS):
        run.start()
        kills = 0
        if cycle in EARLY:
            time.sleep(rng.uniform(0.5, 4.0))
            moment = "starting"
        else:
            run.wait_batches(1)
            for _ in range(2 if cycle in (0, 5) else 1):
                time.sleep(rng.uniform(0.0, 0.4))
                kills += run.kill_worker()
            moment = "at random"
            if cycle in IN_WRITE:
                run.wait(lambda: run.half_written() or not run.alive())
                moment = "writing"
            else:
                time.sleep(rng.uniform(0.0, 3.0))
        hit, gone = run.kill_learner()
        assert set(os.listdir("/dev/shm")) <= shm
        worker_kills += kills
        in_write += hit
        latest, logged = run.standing()
        table.append((cycle, moment, "yes" if hit else "", latest, logged, kills, f"{gone:.2f}"))
    run.start()
    while worker_kills < KILLS:  # the rest, in one go: the run replaces them as they fall
        run.wait_batches(1)
        time.sleep(rng.uniform(0.0, 0.3))
        worker_kills += run.kill_worker()
    assert run.process.wait(600) == 0
    run.assert_nothing_left()
    assert set(os.listdir("/dev/shm")) <= shm

    sys.stdout.write(f"\n{KILLS} kills of the learner, {in_write} of them inside a checkpoint write, {worker_kills} of a worker\n")
    sys.stdout.writelines("  ".join(f"{cell!s:>14}" for cell in row) + "\n" for row in table)
    assert worker_kills >= KILLS
    assert in_write >= 3
    run.assert_trained_exactly_once()


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
