"""A user's method in one file, installed as a distribution of its own: listed, explained, trained with, resumed to the bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from support import runs
from support.cli import cli
from trimtab.control.registry import method_class, names
from trimtab.store import checkpoint
from trimtab.telemetry.metrics import BatchRecord

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_method.py"
METHODS = ["vcpo", {"name": "drift_brake", "tolerance": 1e-6, "memory": 0.5}]


class Interrupting(runs.Quiet):
    """Sends its own process SIGTERM after so many batches."""

    def __init__(self, after: int) -> None:
        self._after = after

    def batch(self, record: BatchRecord, waiting_for: str) -> None:
        if record.batch + 1 == self._after:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What ``pip install`` of the example leaves: a module and a ``dist-info`` with the entry point its docstring shows."""
    site = tmp_path / "site"
    info = site / "own_method-0.1.dist-info"
    info.mkdir(parents=True)
    shutil.copy(EXAMPLE, site)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-method\nVersion: 0.1\n")
    shown = EXAMPLE.read_text().partition('[project.entry-points."trimtab.methods"]\n')[2].partition("\n\n")[0]
    (info / "entry_points.txt").write_text(f"[trimtab.methods]\n{shown.strip().replace(chr(34), '')}\n")
    monkeypatch.syspath_prepend(site)
    return site


def test_it_is_not_there_before_it_is_installed() -> None:
    assert "drift_brake" not in names()
    assert cli("methods", "drift_brake").code == 2


def test_it_is_listed_and_explained_like_any_other(installed: Path) -> None:
    assert method_class("drift_brake").__module__ == "own_method"
    (line,) = [x for x in cli("methods").out.splitlines() if x.startswith("  drift_brake ")]
    assert "control" in line
    one = cli("methods", "drift_brake").out
    for said in ("acts at   step", "switches  tolerance = 1.0", "cost      nothing", "fails     Long rollouts", "code      own_method"):
        assert said in one
    assert "drift_brake" in {row["name"] for row in json.loads(cli("methods", "--json").out)["methods"]}


def test_it_trains_and_survives_a_checkpoint(installed: Path, tmp_path: Path) -> None:
    config = runs.config(
        tmp_path,
        METHODS,
        runtime={"kind": "lockstep", "lag": 1},
        learner={"batches": 4, "optimizer": {"lr": runs.LR}},
        rollout={"max_new_tokens": 8, "prompts_per_batch": 4, "group_size": 4},
        store={"every": 2, "keep": 4},
    )
    whole, halted = tmp_path / "whole", tmp_path / "halted"
    assert runs.train(config, whole).status == "done"
    braked = [json.loads(line) for line in (whole / "decisions.jsonl").read_text().splitlines() if '"drift_brake"' in line]
    assert braked
    assert all(d["what"] == "scaled" and d["amount"] < 1 for d in braked)

    assert runs.train(config, halted, Interrupting(2)).status == "interrupted"
    assert runs.resume(halted).status == "done"
    assert runs.digest_after(halted, 4) == runs.digest_after(whole, 4)
    states = [checkpoint.load(run / "checkpoints", 4)["methods"]["learner"]["drift_brake"] for run in (whole, halted)]
    assert states[0] == states[1]
    assert states[0]["drift"] > 0


def test_a_run_that_needs_it_says_so_where_it_is_missing() -> None:
    refused = cli("config", "check", "quickstart", 'methods=["vcpo", "drift_brake"]')
    assert refused.code == 2
    assert refused.sentence.startswith("methods = 'drift_brake': unknown method; use one of ")
