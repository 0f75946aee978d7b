"""The four methods two at a time, in lockstep: both act, a resumed run is the uninterrupted one to the bit, and each matters."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from support import runs
from trimtab.config.run import RunConfig
from trimtab.records import Json

BATCHES, LAG = 8, 2
# A method's list, and the name under which it decides.
FOUR: dict[str, tuple[list[Json], str]] = {
    "vcpo": (["vcpo"], "ess"),
    "gac": ([{"name": "gac", "c_low": 0.0, "c_high": 0.9}], "gac"),
    "copc": (["copc"], "copc_credit"),
    "pace": ([{"name": "pace", "beta": 0.0, "w_star": 0.0}], "pace"),
}
PAIRS = list(itertools.combinations(FOUR, 2))


def configure(folder: Path, chosen: tuple[str, ...]) -> RunConfig:
    """A chain of the chosen ones. VCPO's step belongs to it also where COPC, named later, takes over weights and credit."""
    methods = [entry for name in chosen for entry in FOUR[name][0]]
    if not {"vcpo", "copc"} & set(chosen):
        methods = ["seq_tis", *methods]
    learner: dict[str, Json] = {"batches": BATCHES, "optimizer": {"lr": 2e-3}}
    # More groups than a batch takes, whoever selects: PACE has something to let go.
    runtime: dict[str, Json] = {"kind": "lockstep", "lag": LAG, "surplus": 1.0, "max_lag": "none"}
    return runs.config(folder, methods, runtime=runtime, learner=learner, store={"every": 4}, eval={"prompts": 2})


def deciders(path: Path) -> set[str]:
    return {str(json.loads(line)["method"]) for line in (path / "decisions.jsonl").read_text().splitlines()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], str]:
    """The weights that each method ends with on its own, and none of them."""
    folder = tmp_path_factory.mktemp("alone")
    out = {}
    for name in FOUR:
        runs.train(configure(folder, (name,)), folder / name)
        out[name,] = runs.digest_after(folder / name, BATCHES)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_two_of_the_four(pair: tuple[str, str], alone: dict[tuple[str, ...], str], tmp_path: Path) -> None:
    config = configure(tmp_path, pair)
    assert runs.train(config, tmp_path / "whole").status == "done"
    assert {FOUR[name][1] for name in pair} <= deciders(tmp_path / "whole")

    assert runs.train(config, tmp_path / "run", runs.Interrupting(after=5)).status == "interrupted"
    assert runs.resume(tmp_path / "run").status == "done"
    digest = runs.digest_after(tmp_path / "whole", BATCHES)
    assert runs.digest_after(tmp_path / "run", BATCHES) == digest
    for name in ("metrics.jsonl", "decisions.jsonl"):
        assert runs.lines(tmp_path / "run" / name) == runs.lines(tmp_path / "whole" / name), name

    assert digest not in {alone[name,] for name in pair}


@pytest.mark.slow
@pytest.mark.parametrize("methods", [["pace", "copc", "gac", "ess"], ["pace", "vcpo", "gac", "zclip"]], ids="+".join)
def test_four_together_with_real_workers(methods: list[Json], tmp_path: Path) -> None:
    methods = [{"name": "pace", "w_star": 0.0, "beta": 0.0} if m == "pace" else m for m in methods]
    runtime: dict[str, Json] = {"kind": "local", "max_lag": "none", "depth": 4, "start_deadline_s": 600.0}
    config = runs.config(tmp_path, methods, runtime=runtime, learner={"batches": 12, "optimizer": {"lr": 1e-3}}, eval={"prompts": 2})
    summary = runs.train(config, tmp_path / "run")
    assert summary.status == "done"
    assert summary.batches == 12
    records = runs.lines(tmp_path / "run" / "metrics.jsonl")
    assert sum(r["applied"] for r in records) >= 6  # of the rest the methods say why
    assert all(r["applied"] or r["reason"] for r in records)
