"""Every group that a method lets go stands in decisions.jsonl, once, whatever happens to the run in between."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import cast

import pytest
from tests.e2e.test_resume_lockstep import assert_same_run

from support import runs
from trimtab.config.run import RunConfig
from trimtab.records import Json, TrimtabError
from trimtab.store import checkpoint

BATCHES = 12


def configure(folder: Path, runtime: dict[str, Json], *methods: Json, batches: int = BATCHES) -> RunConfig:
    learner: dict[str, Json] = {"batches": batches, "optimizer": {"lr": runs.LR}}
    listed: list[Json] = ["vcpo", {"name": "dynamic_sampling", "max_refill": 3}, *methods]
    return runs.config(folder, listed, runtime=runtime, learner=learner, store={"every": 4})


def dropped(run: Path) -> dict[str, float]:
    """By reason, from the last checkpoint's ledger."""
    pool = cast("dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]]", checkpoint.load_latest(run / "checkpoints").parts["pool"])
    return dict(pool["state"]["book"]["ledger"]["reasons"].get("dropped", {}))


def said(run: Path, method: str) -> float:
    found = [d for d in runs.lines(run / "decisions.jsonl") if d["method"] == method]
    assert {d["point"] for d in found} <= {"accept", "select"}
    return sum(cast(float, d["amount"]) for d in found)


def test_rejections_on_arrival_are_told_once_over_restarts(tmp_path: Path) -> None:
    config = configure(tmp_path, {"kind": "lockstep", "lag": 2})
    assert runs.train(config, tmp_path / "whole").status == "done"
    assert said(tmp_path / "whole", "dynamic_sampling") == dropped(tmp_path / "whole")["constant score"] > 0
    run = tmp_path / "run"
    runs.train(config, run, runs.Interrupting(3))
    assert runs.resume(run, runs.Interrupting(7)).status == "interrupted"
    assert runs.resume(run).status == "done"
    assert_same_run(tmp_path / "whole", run)


def test_the_end_tells_what_came_after_the_last_batch(tmp_path: Path) -> None:
    """Surplus groups that are left over, and those rejected since the last batch."""
    run = tmp_path / "run"
    runs.train(configure(tmp_path, {"kind": "lockstep", "lag": 1, "surplus": 0.5}, batches=5), run)
    gone = dropped(run)
    assert said(run, "dynamic_sampling") == gone["constant score"]
    assert said(run, "pool") == gone["surplus"] > 0
    assert [d["batch"] for d in runs.lines(run / "decisions.jsonl") if d["what"] == "surplus"] == [5]


def test_workers_beside_the_learner_lose_no_decision(tmp_path: Path) -> None:
    run = tmp_path / "run"
    runs.train(configure(tmp_path, {"kind": "local", "workers": 2, "max_lag": 3}, batches=6), run)
    assert said(run, "dynamic_sampling") == dropped(run)["constant score"] > 0


def test_a_checkpoint_of_the_earlier_layout_is_refused_in_one_sentence(tmp_path: Path) -> None:
    run = tmp_path / "run"
    runs.train(configure(tmp_path, {"kind": "lockstep", "lag": 1}), run, runs.Interrupting(4))
    parts = dict(checkpoint.load(run / "checkpoints", 4))
    sides = cast("dict[str, dict[str, Json]]", parts["methods"])
    assert sides.keys() == {"pool", "learner"}
    parts["methods"] = {**sides["pool"], **sides["learner"]}
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    checkpoint.save(run / "checkpoints", 4, parts, keep=1)
    with pytest.raises(TrimtabError, match=r"^checkpoint 4 was written by an earlier Trimtab, .*; resume it with the version that"):
        runs.resume(run)
