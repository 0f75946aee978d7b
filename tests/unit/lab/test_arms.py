"""Cells of an experiment: one process each, results that survive an interruption, failures that are named."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from support import runs
from trimtab.config.load import to_toml
from trimtab.lab import arms
from trimtab.lab.arms import Cell, Found
from trimtab.records import TrimtabError
from trimtab.report.runfiles import Run


def measure(run: Run) -> dict[str, float]:
    return {"held_out": arms.held_out(run), "batches": float(len(run.metrics)), "nothing": arms.mean(run, "no/metric")}


@pytest.mark.slow
def test_cells_run_once_and_a_broken_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = runs.config(tmp_path, ["seq_tis", "grpo"], runtime={"kind": "lockstep", "lag": 1}, learner={"batches": 3})
    preset = tmp_path / "preset.toml"
    preset.write_text(to_toml(config))
    monkeypatch.setenv("PYTHONPATH", str(Path(runs.__file__).parents[1]))  # the reward function
    cells = [Cell("a", 0, ()), Cell("a", 1, ()), Cell("b", 0, ("runtime.lag=-1",))]
    told: list[Found] = []
    with pytest.raises(TrimtabError, match=r"b-seed0 ended with exit code 2, see .*b-seed0\.txt"):
        arms.run(cells, tmp_path / "out", measure, preset=str(preset), jobs=2, tell=told.append)
    assert "runtime.lag" in (tmp_path / "out" / "b-seed0.txt").read_text()
    assert sorted(found.seed for found in told) == [0, 1]
    lines = (tmp_path / "out" / arms.RESULTS).read_text().splitlines()
    assert [json.loads(line)["values"]["batches"] for line in lines] == [3.0, 3.0]
    assert json.loads(lines[0])["values"]["nothing"] is None

    (tmp_path / "out" / arms.RESULTS).write_text("".join(f"{line}\n" for line in lines) + '{"arm": "a", "se')  # torn by a crash
    again = arms.run(cells[:2], tmp_path / "out", measure, preset=str(preset), tell=told.append)
    assert len(told) == 2  # nothing was run again
    assert [(f.arm, f.seed, f.status, f.values["held_out"]) for f in again] == [
        (f.arm, f.seed, "done", f.values["held_out"]) for f in sorted(told, key=lambda f: f.seed)
    ]


def test_windows_and_ends() -> None:
    rows = [{"batch": float(i), "metrics": {"accuracy/train": [float(i), 1.0]}} for i in range(5)]
    run = Run("r", rows, [], [], [], [], None, "", {})  # type: ignore[arg-type]
    assert arms.windows(run, "accuracy/train", 2).tolist() == pytest.approx([0.5, 1.5, 2.5, 3.5])
    assert arms.windows(run, "accuracy/train", 6).size == 0
    assert arms.last(run, "accuracy/train", 2) == pytest.approx(3.5)
    assert arms.lowest(run, "accuracy/train") == 0.0


@pytest.mark.slow
def test_a_killed_experiment_leaves_no_run_behind(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from trimtab.lab import arms; "
        f"arms.run([arms.Cell('long', 0, ())], Path({str(tmp_path)!r}), lambda run: {{}}, extra=('learner.batches=100000',))"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as experiment:
        until = time.monotonic() + 120
        while not (tmp_path / "long-seed0" / "metrics.jsonl").exists():
            assert time.monotonic() < until
            time.sleep(0.1)
        runs_of_it = psutil.Process(experiment.pid).children(recursive=True)
        assert runs_of_it
        experiment.kill()
    assert psutil.wait_procs(runs_of_it, timeout=20)[1] == []
