"""GAC's state through a checkpoint: a run that was interrupted inside its control and resumed is the uninterrupted one, bit for bit."""

import json
import os
import signal
from pathlib import Path

import pytest

from support import runs
from trimtab.records import Json
from trimtab.telemetry.metrics import BatchRecord

BATCHES = 8
GAC: dict[str, Json] = {"name": "gac", "c_low": 0.0, "c_high": 0.3, "max_consecutive_skips": 1}


class Interrupting(runs.Quiet):
    def batch(self, record: BatchRecord, waiting_for: str) -> None:
        if record.batch == 3:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    "options",
    [{}, {"reference": "applied", "granularity": "param_group", "mode": "cone"}, {"copy_dtype": "bf16", "boundary": "batch"}],
    ids=["plain", "applied, groups", "bf16, across batches"],
)
def test_resumed_inside_its_control(tmp_path: Path, options: dict[str, Json]) -> None:
    learner: dict[str, Json] = {"batches": BATCHES, "updates_per_batch": 2, "optimizer": {"lr": runs.LR}}
    runtime: dict[str, Json] = {"kind": "lockstep", "lag": 2}
    config = runs.config(tmp_path, ["vcpo", {**GAC, **options}, "median_clip", "zclip"], runtime=runtime, learner=learner)
    assert runs.train(config, tmp_path / "whole").status == "done"
    assert runs.train(config, tmp_path / "run", Interrupting()).status == "interrupted"
    assert runs.resume(tmp_path / "run").status == "done"
    assert runs.digest_after(tmp_path / "whole", BATCHES) == runs.digest_after(tmp_path / "run", BATCHES)

    decisions = [(tmp_path / name / "decisions.jsonl").read_text() for name in ("whole", "run")]
    assert decisions[0] == decisions[1]
    said = {(d["what"]) for d in map(json.loads, decisions[0].splitlines()) if d["method"] == "gac"}
    assert "projected" in said


def test_switching_it_off_changes_the_weights(tmp_path: Path) -> None:
    digests = set()
    for name, methods in (("with", ["vcpo", GAC]), ("without", ["vcpo"]), ("watching", ["vcpo", {**GAC, "monitor": True}])):
        config = runs.config(tmp_path, methods, runtime={"kind": "lockstep", "lag": 2}, learner={"batches": 4})
        runs.train(config, tmp_path / name)
        digests.add(runs.digest_after(tmp_path / name, 4))
    assert len(digests) == 2  # watching is without
