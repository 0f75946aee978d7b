"""The steady experiment: what is read off a run, and the switch to harder prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from trimtab.config.load import load
from trimtab.lab import steady
from trimtab.report.runfiles import Run


def run(accuracy: Sequence[float], clipped: Sequence[float]) -> Run:
    rows = [
        {
            "batch": float(i),
            "metrics": {"accuracy/train": [a, 1.0], "ess/ratio": [0.5 + i / 1000, 1.0], "method/median_clip/clipped": [c, 1.0]},
        }
        for i, (a, c) in enumerate(zip(accuracy, clipped, strict=True))
    ]
    return Run("r", rows, [], [], [], [], None, "", {})  # type: ignore[arg-type]


def test_a_fall_is_a_window_of_ten_below_090_after_batch_150() -> None:
    accuracy = [0.1] * 140 + [1.0] * 110 + [0.0, 0.5] + [1.0] * 48
    found = steady.measure(run(accuracy, [0.0] * 280 + [1.0] * 20))
    assert found["lowest"] == pytest.approx(0.85)
    assert found["below_0.90"] == 9  # those with both; exactly 0.90 is not below
    assert found["last_200"] == pytest.approx(np.mean(accuracy[-200:]))
    assert (found["min_ess"], found["batches"]) == (pytest.approx(0.5), 300)
    assert found["clipped"] == pytest.approx(20 / 300)


def test_recovery_is_read_after_the_switch() -> None:
    found = steady.recovery(run([0.9] * 100 + [0.2] * 50 + [0.5] * 150, [0.0] * 100 + [1.0] * 10 + [0.0] * 190), before=100)
    assert found["before"] == pytest.approx(0.9)
    assert (found["first_50"], found["from_100_to_150"], found["last_50"]) == (pytest.approx(0.2), pytest.approx(0.5), pytest.approx(0.5))
    assert (found["clipped_first_50"], found["clipped"]) == (pytest.approx(0.2), pytest.approx(0.05))
    assert found["min_ess"] == pytest.approx(0.6)


def test_every_arm_is_a_sound_configuration_and_the_table_has_a_line_for_each() -> None:
    for methods in steady.ARMS.values():
        chain = load("steady", [f"methods={methods}"]).chain()
        assert any(m.name == "norm_clip" for m in chain.methods)
    text = steady.table({"a": [{"x": 1.0}, {"x": 0.5}], "b": [{"x": 2.0}, {"x": float("nan")}]})
    assert text == "| arm | x |\n|---|---|\n| a | 1, 0.5 |\n| b | 2, nan |\n"


@pytest.mark.slow
def test_a_finished_run_goes_on_with_harder_prompts(tmp_path: Path) -> None:
    extra = ["eval.prompts=8", "rollout.prompts_per_batch=2"]
    found = steady.harder(tmp_path, seeds=1, before=2, after=16, extra=extra, jobs=2)
    assert list(found) == list(steady.VARIANTS)
    folder = tmp_path / "base-seed0-no_clip"
    table = json.loads((folder / "config.json").read_text())
    assert table["task"]["config"]["max_terms"] == 9
    assert next(m for m in table["methods"] if m["name"] == "median_clip")["factor"] == 1e9
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 18
    written = (folder / "summary.json").stat().st_mtime_ns
    steady.harder(tmp_path, seeds=1, before=2, after=16, extra=extra, jobs=1)
    assert (folder / "summary.json").stat().st_mtime_ns == written  # done, and left
