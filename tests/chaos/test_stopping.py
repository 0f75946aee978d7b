"""What ends a run from outside: signals at any moment, a terminal that closes, a reader that goes away. Never without a checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from support import runs
from trimtab.config.load import to_toml
from trimtab.records import Json
from trimtab.store import checkpoint

LIMIT_S = 10.0  # from the signal to the end of the process, its checkpoint made
PATIENCE_S = 120.0  # for what comes before the signal, on a machine that does much else

# A learner whose every forward takes long, as that of a large model does; the rest of the run is as it is.
SLOW_BATCH = """
import time
from trimtab.learner.passes import PackedModel
def slow(self, packed, *, forward=PackedModel.forward, **options):
    for _ in range(300):
        time.sleep(0.1)
    return forward(self, packed, **options)
PackedModel.forward = slow
"""
SLOW_EVALUATION = """
import time
from trimtab.rollout.sampler import Sampler
def slow(self, *given, evaluate=Sampler.evaluate, **named):
    for _ in range(600):
        time.sleep(0.1)
    return evaluate(self, *given, **named)
Sampler.evaluate = slow
"""


def command(folder: Path, patch: str = "", **tables: Mapping[str, Json]) -> list[str]:
    """A run of the tiny model as a process; ``patch`` is run in it first."""
    config = runs.config(
        folder,
        ["vcpo"],
        rollout={"max_new_tokens": 8, "prompts_per_batch": 4, "group_size": 4},
        learner={"batches": 5000, "optimizer": {"lr": 1e-4}},
        store={"every": 1000, "keep": 2},
        eval={"prompts": 4},
        **tables,
    )
    (folder / "run.toml").write_text(to_toml(config))
    script = f"{patch}\nimport sys\nfrom trimtab.cli.main import main\nsys.argv = ['trimtab', 'train', 'run.toml']\nmain()\n"
    (folder / "start.py").write_text(script)
    return [sys.executable, "start.py"]


LOCAL: dict[str, Json] = {"kind": "local", "max_lag": 3, "start_deadline_s": 600.0}
LOCKSTEP: dict[str, Json] = {"kind": "lockstep", "lag": 1}


def until(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert process.poll() is None, "the run ended by itself"
        assert time.monotonic() < end, "what the signal waits for did not come"
        time.sleep(0.02)


def here(folder: Path) -> Path:
    return folder / "runs" / "run"


def trained(folder: Path, batches: int) -> Callable[[], bool]:
    metrics = here(folder) / "metrics.jsonl"
    return lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= batches


def checkpointed(folder: Path) -> Callable[[], bool]:
    """The first checkpoint is there: the runtime begins."""
    return lambda: (here(folder) / "checkpoints" / "000000").exists()


def configured(folder: Path) -> Callable[[], bool]:
    return lambda: (here(folder) / "config.json").exists()


def summary(folder: Path) -> dict[str, Json]:
    found: dict[str, Json] = json.loads((here(folder) / "summary.json").read_text())
    return found


def spawn(folder: Path, line: list[str], **how: object) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(line, cwd=folder, env=env, start_new_session=True, **how)  # type: ignore[call-overload, no-any-return]


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("number", "runtime"),
    [(signal.SIGTERM, LOCAL), (signal.SIGHUP, LOCAL), (signal.SIGINT, LOCKSTEP), (signal.SIGUSR1, LOCKSTEP)],
    ids=["TERM-local", "HUP-local", "INT-lockstep", "USR1-lockstep"],
)
def test_every_signal_ends_in_a_checkpoint(tmp_path: Path, number: signal.Signals, runtime: dict[str, Json]) -> None:
    process = spawn(tmp_path, command(tmp_path, runtime=runtime), stderr=subprocess.DEVNULL)
    until(trained(tmp_path, 3), process)
    process.send_signal(number)
    assert process.wait(LIMIT_S) == 130
    batches = summary(tmp_path)["batches"]
    assert checkpoint.load_latest(here(tmp_path) / "checkpoints").number == batches
    assert summary(tmp_path)["status"] == "interrupted"


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("patch", "ready", "runtime"),
    [
        (SLOW_EVALUATION, configured, LOCAL),
        (SLOW_BATCH, checkpointed, LOCKSTEP),
        (SLOW_BATCH, checkpointed, LOCAL),
    ],
    ids=["evaluation", "batch-lockstep", "batch-local"],
)
def test_whatever_the_run_is_doing(
    tmp_path: Path, patch: str, ready: Callable[[Path], Callable[[], bool]], runtime: dict[str, Json]
) -> None:
    """Each would go on for half a minute and more."""
    process = spawn(tmp_path, command(tmp_path, patch, runtime=runtime), stderr=subprocess.DEVNULL)
    until(ready(tmp_path), process)
    time.sleep(3.0)  # somewhere in the middle of it
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 130
    found = checkpoint.load_latest(here(tmp_path) / "checkpoints")
    assert (found.number, summary(tmp_path)["status"]) == (0, "interrupted")


@pytest.mark.chaos
def test_a_batch_that_was_given_up_is_trained_by_the_resumed_run(tmp_path: Path) -> None:
    """Lockstep is deterministic: interrupted in the middle of its first batch and resumed, the run is the one that was not."""
    process = spawn(tmp_path, command(tmp_path, SLOW_BATCH, runtime=LOCKSTEP), stderr=subprocess.DEVNULL)
    until(checkpointed(tmp_path), process)
    time.sleep(3.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 130
    config = runs.config(
        tmp_path,
        ["vcpo"],
        rollout={"max_new_tokens": 8, "prompts_per_batch": 4, "group_size": 4},
        learner={"batches": 5000, "optimizer": {"lr": 1e-4}},
        store={"every": 1000, "keep": 2},
        eval={"prompts": 4},
        runtime=LOCKSTEP,
    )
    runs.train(config, tmp_path / "whole", runs.Interrupting(after=3))
    runs.resume(here(tmp_path), runs.Interrupting(after=3))
    assert runs.digest_after(here(tmp_path), 3) == runs.digest_after(tmp_path / "whole", 3)


@pytest.mark.chaos
def test_a_signal_during_start_up_leaves_nothing(tmp_path: Path) -> None:
    slow = "import trimtab.runtime.run as r, time\ndef late(c, build=r.build):\n    for _ in range(600): time.sleep(0.1)\nr.build = late\n"
    process = spawn(tmp_path, command(tmp_path, slow, runtime=LOCAL), stderr=subprocess.PIPE)
    until(lambda: (here(tmp_path) / "run.log").exists(), process)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert b"Traceback" not in said
    assert not here(tmp_path).exists()


@pytest.mark.chaos
@pytest.mark.parametrize("runtime", [LOCAL, LOCKSTEP], ids=["local", "lockstep"])
def test_ctrl_c_on_a_pipeline_with_tee(tmp_path: Path, runtime: dict[str, Json]) -> None:
    """The signal reaches tee, too: whatever is written from then on fails."""
    line = " ".join(command(tmp_path, runtime=runtime))
    shell = spawn(tmp_path, ["bash", "-c", f"{line} 2>&1 | tee log > /dev/null; exit ${{PIPESTATUS[0]}}"])
    until(trained(tmp_path, 3), shell)
    os.killpg(shell.pid, signal.SIGINT)
    shell.wait(LIMIT_S)
    end, written = time.monotonic() + LIMIT_S, here(tmp_path) / "summary.json"
    while not written.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert summary(tmp_path)["status"] == "interrupted"
    assert checkpoint.load_latest(here(tmp_path) / "checkpoints").number == summary(tmp_path)["batches"]


@pytest.mark.chaos
def test_a_reader_that_goes_away_ends_nothing(tmp_path: Path) -> None:
    """``trimtab train … 2>&1 | head -1``, and a terminal that closes: the run trains on, and a signal still finds it."""
    gone, ours = os.pipe()
    process = spawn(tmp_path, command(tmp_path, runtime=LOCAL), stdout=ours, stderr=ours)
    os.close(ours)
    os.read(gone, 10)
    os.close(gone)
    until(trained(tmp_path, 60), process)  # a line is written every 20 batches
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 130
    found = summary(tmp_path)
    assert (found["status"], found["reason"]) == ("interrupted", "")
    assert checkpoint.load_latest(here(tmp_path) / "checkpoints").number == found["batches"]
