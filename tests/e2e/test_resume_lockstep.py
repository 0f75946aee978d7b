"""Invariant 6 for lockstep: a run that was interrupted and resumed is the uninterrupted one, bit for bit.

Weights, every metric that is no time, decisions, events, and the rollouts trained on, each exactly once.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import runs
from trimtab.config.run import RunConfig
from trimtab.records import Json

BATCHES, LAG, EVERY = 12, 2, 4
PLAIN: dict[str, Json] = {"kind": "lockstep", "lag": LAG}
SWAPPING: dict[str, Json] = {**PLAIN, "swap_every": 3}
CALIBRATING: Json = {"name": "ess", "reference": "calibrate", "calibration": 6}


def configure(folder: Path, runtime: dict[str, Json], *more: Json) -> RunConfig:
    learner: dict[str, Json] = {"batches": BATCHES, "optimizer": {"lr": runs.LR}}
    return runs.config(folder, ["vcpo", *more], runtime=runtime, learner=learner, store={"every": EVERY})


def kill_in_batch(config: RunConfig, path: Path, batch: int) -> None:
    """Run in a process of its own and ``kill -9`` it when ``batch`` is trained, before a checkpoint that may be due then."""
    file = path.with_suffix(".json")
    file.write_text(config.model_dump_json())
    command = [sys.executable, "-m", "support.held_run", str(file), str(path), str(batch)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stdout.readline() != b"held\n":
            pytest.fail(process.stderr.read().decode())
        process.kill()


def assert_same_run(a: Path, b: Path) -> None:
    assert runs.digest_after(a, BATCHES) == runs.digest_after(b, BATCHES)
    for name in ("metrics.jsonl", "decisions.jsonl", "events.jsonl"):
        assert runs.lines(a / name) == runs.lines(b / name), name
    assert len(runs.lines(a / "metrics.jsonl")) == BATCHES
    ours, theirs = runs.trained(a), runs.trained(b)
    assert ours.keys() == theirs.keys()
    for key, rollout in ours.items():
        for x, y in zip(rollout.segments, theirs[key].segments, strict=True):
            for column in ("tokens", "behavior_logp", "versions"):
                assert getattr(x, column).tobytes() == getattr(y, column).tobytes(), (key, column)
    summaries = [json.loads((path / "summary.json").read_text()) for path in (a, b)]
    for summary in summaries:
        del summary["wall_s"], summary["cpu_s"]
    assert summaries[0] == summaries[1]


def test_killed_then_terminated_then_resumed_is_the_same_run(tmp_path: Path) -> None:
    config = configure(tmp_path, PLAIN)
    assert runs.train(config, tmp_path / "whole").status == "done"

    run = tmp_path / "run"
    kill_in_batch(config, run, 5)
    assert len(runs.lines(run / "metrics.jsonl")) == 6  # two batches beyond the checkpoint, to be trained anew

    assert runs.resume(run, runs.Interrupting(after=10)).status == "interrupted"
    assert len(runs.lines(run / "metrics.jsonl")) == 10
    assert len(runs.lines(run / "orphans" / "000004-1" / "metrics.jsonl")) == 2

    assert runs.resume(run).status == "done"
    assert_same_run(tmp_path / "whole", run)


def test_swapping_weights_killed_at_first_then_resumed_from_a_checkpoint_made_inside_a_batch(tmp_path: Path) -> None:
    config = configure(tmp_path, SWAPPING)
    whole = runs.train(config, tmp_path / "whole")
    assert whole.spanning_rollouts > 0  # weights were swapped inside rollouts

    run = tmp_path / "run"
    kill_in_batch(config, run, 2)  # before the first periodic checkpoint: it begins at batch 0 again
    assert runs.resume(run, runs.Interrupting(after=8)).status == "interrupted"
    assert runs.resume(run).status == "done"
    assert_same_run(tmp_path / "whole", run)


def test_interrupted_while_the_reference_of_ess_is_calibrated(tmp_path: Path) -> None:
    config = configure(tmp_path, PLAIN, CALIBRATING)
    assert runs.train(config, tmp_path / "whole").status == "done"
    records = runs.lines(tmp_path / "whole" / "metrics.jsonl")
    multipliers = [r["metrics"]["step/multiplier"] for r in records]
    assert multipliers[:6] == [[1.0, 1.0]] * 6
    assert any(n < d for n, d in multipliers[6:])  # calibrated, and in force
    assert [r["metrics"]["age/max"] for r in records] == [0.0] * 7 + [1.0] + [2.0] * 4

    run = tmp_path / "run"
    assert runs.train(config, run, runs.Interrupting(after=5)).status == "interrupted"
    assert runs.resume(run).status == "done"
    assert_same_run(tmp_path / "whole", run)


def test_calibration_batches_are_on_policy_under_swaps_too(tmp_path: Path) -> None:
    runs.train(configure(tmp_path, SWAPPING, CALIBRATING), tmp_path / "run")
    ages = [r["metrics"]["age/max"] for r in runs.lines(tmp_path / "run" / "metrics.jsonl")]
    assert ages[:6] == [0.0] * 6
    assert max(ages) == LAG
