"""The local runtime with real processes: evaluation beside the run, signals, and workers that stop, die, differ or cannot score."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import psutil
import pytest
import torch

from support import runs
from trimtab.config.load import to_toml
from trimtab.config.run import RunConfig
from trimtab.engines.checkpoint import load_policy
from trimtab.engines.digest import weights_digest
from trimtab.records import Json, StoppedByRule, TrimtabError
from trimtab.rollout.sampler import Sampler
from trimtab.store.jsonl import read_jsonl
from trimtab.telemetry.held_out import HeldOut
from trimtab.telemetry.metrics import BatchRecord
from trimtab.weights.publish import PublishError

pytestmark = pytest.mark.slow


def config(folder: Path, batches: int = 12, **tables: dict[str, Json]) -> RunConfig:
    small: dict[str, dict[str, Json]] = {
        "rollout": {"max_new_tokens": 8, "prompts_per_batch": 4, "group_size": 4},
        "learner": {"batches": batches, "optimizer": {"lr": 1e-3}},
        "runtime": {"kind": "local", "max_lag": 2},
        "store": {"every": 4, "keep": 10},
    }
    for name, changes in tables.items():
        small[name] = small.get(name, {}) | changes
    small["runtime"]["start_deadline_s"] = 600.0  # a busy machine is no failure
    return runs.config(folder, ["vcpo"], **small)


class Recording(runs.Quiet):
    """``answered``: how many batches were consumed when the evaluation after a batch was answered."""

    def __init__(self) -> None:
        self._batches = 0
        self.answered: dict[int, int] = {}

    def batch(self, record: BatchRecord, waiting_for: str) -> None:
        self._batches += 1

    def evaluated(self, batch: int, found: HeldOut) -> None:
        self.answered[batch] = self._batches


class At(runs.Quiet):
    """Does something to the workers' processes after batch ``number``."""

    def __init__(self, number: int, act: Callable[[psutil.Process], object]) -> None:
        self._number, self._act = number, act

    def batch(self, record: BatchRecord, waiting_for: str) -> None:
        if record.batch == self._number:
            for child in psutil.Process().children():
                if "trimtab.rollout.worker" in child.cmdline():
                    self._act(child)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """However a run ends: no process and no descriptor of it stays."""
    me = psutil.Process()
    before, blocks = {p.pid for p in me.children(recursive=True)}, _blocks()
    yield
    until = time.monotonic() + 5
    while left := [p for p in me.children(recursive=True) if p.pid not in before and p.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() < until, left
        time.sleep(0.05)
    assert not _blocks() - blocks


def _blocks() -> set[str]:
    """The descriptors of shared weights; another test of this process may have left garbage that holds some."""
    return {f for f in os.listdir("/proc/self/fd") if "trimtab-weights" in _target(f)}


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


# ------------------------------------------------------------------------------------------------------------- evaluation


def test_evaluations_are_pinned_to_their_versions_and_do_not_block(tmp_path: Path) -> None:
    run = config(
        tmp_path,
        16,
        runtime={"kind": "local", "max_lag": "none", "depth": 2, "workers": 2},
        eval={"prompts": 8, "every": 4},
    )
    seen = Recording()
    summary = runs.train(run, tmp_path / "run", seen)
    assert (summary.status, summary.batches) == ("done", 16)

    rows = list(read_jsonl(tmp_path / "run" / "eval.jsonl"))
    assert [(r["when"], r["batch"]) for r in rows] == [("before", 0), ("during", 4), ("during", 8), ("during", 12), ("after", 16)]
    during = rows[1:4]
    for row in during:
        batch = cast(int, row["batch"])
        assert row["accuracy"] == _accuracy(run, runs.weights_after(tmp_path / "run", batch)), f"not the weights of batch {batch}"
    best = max(during, key=lambda r: (cast(float, r["score"]), cast(int, r["batch"])))  # of equals the later one
    kept = {name: p.detach() for name, p in load_policy(tmp_path / "run" / "best").model.named_parameters()}
    assert weights_digest(kept) == runs.digest_after(tmp_path / "run", cast(int, best["batch"]))
    assert not (tmp_path / "run" / "eval").exists()

    assert seen.answered[4] > 4  # batches went on meanwhile


def _accuracy(run: RunConfig, weights: dict[str, torch.Tensor]) -> float:
    """What an evaluation of these weights finds, here and now."""
    policy = load_policy(run.model)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            parameter.copy_(weights[name])
    sampler = Sampler.build(policy, task=run.task, verifier=run.verifier, rollout=run.rollout, engine=run.engine, seed=run.seed)
    try:
        return sampler.evaluate(run.eval).accuracy.mean
    finally:
        sampler.close()


# ------------------------------------------------------------------------------------------------------------- signals


def test_a_signal_drains_and_checkpoints_and_resume_goes_on(tmp_path: Path) -> None:
    run = config(tmp_path, 60, store={"every": 50, "keep": 2})
    (tmp_path / "run.toml").write_text(to_toml(run))
    folder = tmp_path / "runs" / "run"
    command = ["train", "run.toml"]
    for number in (signal.SIGINT, signal.SIGTERM):
        process = _cli(tmp_path, *command)
        _wait_batches(process, folder, _batches(folder) + 3)
        process.send_signal(number)
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 130, errors
        assert f"go on with: trimtab resume {folder.relative_to(tmp_path) if command[0] == 'train' else folder}" in out
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["status"] == "interrupted"
        assert summary["batches"] == _batches(folder) < 60
        command = ["resume", str(folder)]
    process = _cli(tmp_path, *command)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    trained = [(epoch, index) for epoch, index, member in runs.trained(folder) if member == 0]
    assert len(trained) == len(set(trained)) > 0
    assert json.loads((folder / "summary.json").read_text())["batches"] == _batches(folder) == 60


def _cli(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(runs.__file__).parents[1]), *sys.path])}
    return subprocess.Popen(
        [sys.executable, "-m", "trimtab.cli.main", *arguments],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _batches(folder: Path) -> int:
    return sum(1 for _ in read_jsonl(folder / "metrics.jsonl"))


def _wait_batches(process: subprocess.Popen[str], folder: Path, number: int) -> None:
    until = time.monotonic() + 240
    while _batches(folder) < number:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until, "not in time"
        time.sleep(0.02)


# ------------------------------------------------------------------------------------------------------------- bad workers


def test_a_stopped_worker_is_named_and_the_run_can_go_on(tmp_path: Path) -> None:
    run = config(tmp_path, 12, runtime={"kind": "local", "max_lag": 2, "publish_deadline_s": 1.0})
    stop = At(3, lambda worker: worker.send_signal(signal.SIGSTOP))
    with pytest.raises(PublishError, match="no answer to stage from worker-0 within 1 s; the old version serves on"):
        runs.train(run, tmp_path / "run", stop)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "stopped"
    summary = runs.resume(tmp_path / "run")
    assert (summary.status, summary.batches) == ("done", 12)
    assert len(runs.trained(tmp_path / "run")) == 4 * 4 * summary.applied


def test_a_dead_worker_without_restarts_left_is_named(tmp_path: Path) -> None:
    run = config(tmp_path, runtime={"kind": "local", "max_lag": 2, "restarts": 0})
    with pytest.raises(StoppedByRule, match=r"^worker-0 died \(killed by signal 9\) after 0 restarts"):
        runs.train(run, tmp_path / "run", At(3, lambda worker: worker.kill()))


def test_a_probe_gap_above_the_threshold_is_refused_before_the_first_batch(tmp_path: Path) -> None:
    run = config(tmp_path, learner={"batches": 12, "probe_gap": 1e-12, "dtype": "float64"}, engine={"kind": "torch", "dtype": "float64"})
    with pytest.raises(TrimtabError, match="probe_gap = 1e-12: worker-0 and learner differ by") as error:
        runs.train(run, tmp_path / "run")
    assert error.value.exit_code == 2
    assert _batches(tmp_path / "run") == 0


class Moving(runs.Quiet):
    """Moves the model away when the run has loaded it, and before its workers do."""

    def __init__(self, model: Path) -> None:
        self._model = model

    def evaluated(self, batch: int, found: HeldOut) -> None:
        self._model.rename(self._model.with_name("moved"))


def test_a_worker_that_cannot_start_says_why_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match=r"^worker-0: model = '.*/model': no such folder") as error:
        runs.train(config(tmp_path), tmp_path / "run", Moving(tmp_path / "model"))
    assert error.value.exit_code == 2


def test_a_reward_that_always_raises_stops_the_run_before_its_first_batch(tmp_path: Path) -> None:
    run = config(tmp_path, task={"reward": "support.rewards:broken"})
    with pytest.raises(StoppedByRule, match=r"^eval: none of \d+ responses got a verdict: error: ValueError: never"):
        runs.train(run, tmp_path / "run")
    assert _batches(tmp_path / "run") == 0


def test_a_reward_that_does_not_load_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    run = config(tmp_path, task={"reward": "support.rewards:missing"})
    (tmp_path / "run.toml").write_text(to_toml(run))
    process = _cli(tmp_path, "train", "run.toml")
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 2
    assert errors.strip().splitlines()[-1].startswith("trimtab: task.reward = 'support.rewards:missing': module support.rewards has no")
    assert "Traceback" not in errors
