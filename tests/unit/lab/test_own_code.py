"""Code that lies beside an experiment's file, or in the working folder: found by the plan and by the workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.laboratory import EXPERIMENT, experiment

# Leaves a run folder without training, and what the reward function says of it.
RUNNER = """
import json
from importlib import import_module

def run(work, tell):
    module, _, name = work.config.task.reward.partition(":")
    score = getattr(import_module(module), name)("", "", "", {})
    row = {"batch": 0, "time": 1.0, "metrics": {"accuracy/train": score}}
    (work.folder / "metrics.jsonl").write_text(json.dumps(row) + "\\n")
    tell(1)
"""


@pytest.mark.slow
def test_a_runner_beside_the_file_and_a_reward_in_the_working_folder(tmp_path: Path) -> None:
    """As the installed script starts it: that has neither folder on its path, where ``python -m`` has."""
    beside, here = tmp_path / "beside", tmp_path / "here"
    beside.mkdir()
    here.mkdir()
    (beside / "runner_beside.py").write_text(RUNNER)
    (here / "reward_here.py").write_text("def score(prompt, response, answer, data): return 0.25\n")
    text = EXPERIMENT.replace("[base]\n", 'runner = "runner_beside:run"\n[base]\ntask.reward = "reward_here:score"\n')
    path = experiment(beside, text.partition("[[figures]]")[0])
    script = tmp_path / "trimtab"
    script.write_text("from trimtab.cli.main import main\nmain()\n")
    packages = os.pathsep.join(p for p in sys.path if p and Path(p).resolve() != Path.cwd())
    ran = subprocess.run(
        [sys.executable, str(script), "lab", "run", str(path), "--seeds", "1", "--cells", "tis/lag=0"],
        cwd=here, env={**os.environ, "PYTHONPATH": packages, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    (metrics,) = (here / "runs" / "lab" / "cells").glob("*/metrics.jsonl")
    assert json.loads(metrics.read_text())["metrics"] == {"accuracy/train": 0.25}
