"""What a worker calls a result, and what broke."""

from __future__ import annotations

import json
from multiprocessing import Pipe
from pathlib import Path

import pytest

from support import runs
from trimtab.lab import worker
from trimtab.lab.schedule import CellTask, Ended
from trimtab.records import Json

RUNNER = """
from trimtab.records import StoppedByDetector, StoppedByRule
def detected(work, tell): raise StoppedByDetector("detector kl stopped the run at batch 7: k3 averaged 1")
def starved(work, tell): raise StoppedByRule("runtime.progress_deadline_s = 600: no group for 600 s")
"""


def ended(folder: Path, runner: str, **tables: dict[str, Json]) -> Ended:
    config = runs.config(folder, ["vcpo"], runtime={"kind": "lockstep", "lag": 1}, rollout={"prompts_per_batch": 2}, **tables)
    (folder / "cell").mkdir()
    ours, theirs = Pipe()
    with ours, theirs:
        return worker._run(CellTask(str(folder / "cell"), runner, {}, config.model_dump(mode="json")), theirs)


def test_a_detectors_stop_is_a_result_and_a_starved_run_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "stopping_of_lab.py").write_text(RUNNER)
    assert ended(tmp_path, "stopping_of_lab:detected").error == ""
    (tmp_path / "cell").rmdir()
    assert ended(tmp_path, "stopping_of_lab:starved").error == "runtime.progress_deadline_s = 600: no group for 600 s"


def test_a_run_that_its_own_detector_stops(tmp_path: Path) -> None:
    kl: Json = {"detectors": {"kl": {"action": "stop", "window": 1, "limit": 1e-12}}}
    assert ended(tmp_path, "train", telemetry=kl, learner={"batches": 9}).error == ""  # type: ignore[arg-type]
    summary = json.loads((tmp_path / "cell" / "summary.json").read_text())
    assert summary["status"] == "stopped"
    assert 0 < summary["batches"] < 9
