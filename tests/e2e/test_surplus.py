"""Lockstep with a surplus: what is brought, what waits, what PACE lets go, and that all of it resumes to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.test_resume_lockstep import assert_same_run

from support import runs
from trimtab.config.run import RunConfig
from trimtab.records import Json

LAG, GROUPS, BROUGHT = 2, 8, 14
SURPLUS: dict[str, Json] = {"kind": "lockstep", "lag": LAG, "surplus": 0.75}
SWAPPING: dict[str, Json] = {**SURPLUS, "swap_every": 3}
BATCHES = 12


def configure(folder: Path, runtime: dict[str, Json], *methods: Json, batches: int = BATCHES) -> RunConfig:
    learner: dict[str, Json] = {"batches": batches, "optimizer": {"lr": runs.LR}}
    return runs.config(folder, ["vcpo", *methods], runtime=runtime, learner=learner, store={"every": 4})


def column(run: Path, name: str) -> list[float]:
    values = [r["metrics"].get(name) for r in runs.lines(run / "metrics.jsonl")]
    return [v[0] / v[1] if isinstance(v, list) else v for v in values]


@pytest.mark.parametrize("source", ["swap", "learner"])
def test_pace_interrupted_and_resumed_is_the_same_run(tmp_path: Path, source: str) -> None:
    config = configure(tmp_path, SWAPPING, {"name": "pace", "beta": 0.5, "forgetting": source})
    whole = runs.train(config, tmp_path / "whole")
    assert whole.status == "done"
    assert whole.spanning_rollouts > 0
    decisions = [d for d in runs.lines(tmp_path / "whole" / "decisions.jsonl") if d["method"] == "pace"]
    assert sum(d["amount"] for d in decisions) == sum(column(tmp_path / "whole", "pool/let_go")) > 0
    spanning = [r for r in runs.trained(tmp_path / "whole").values() if r.oldest < r.newest]
    assert {r.forgetting_source for r in spanning} == {source}
    assert all(r.forgetting is not None and r.forgetting >= 0 for r in spanning)
    assert set(column(tmp_path / "whole", "method/pace/forgetting_known")) <= {1.0, None}

    run = tmp_path / "run"
    for after in (3, 7):
        runs.train(config, run, runs.Interrupting(after)) if after == 3 else runs.resume(run, runs.Interrupting(after))
    assert runs.resume(run).status == "done"
    assert_same_run(tmp_path / "whole", run)


def test_first_come_first_served_grows_without_bound(tmp_path: Path) -> None:
    """No selector: every batch brings 14 groups on weights of 2 consumed batches ago and takes the 8 oldest."""
    runs.train(configure(tmp_path, SURPLUS, batches=7), tmp_path / "run")
    assert column(tmp_path / "run", "pool/waiting") == [(BROUGHT - GROUPS) * (t + 1) for t in range(7)]
    trained = sorted({(epoch, index) for epoch, index, _ in runs.trained(tmp_path / "run")})
    assert trained == [(0, i) for i in range(7 * GROUPS)]
    ages = column(tmp_path / "run", "age/max")
    assert ages[:3] == [0, 1, 2]  # the first batches have no older weights, and 6 of 14 are left over each time
    assert ages[-1] > LAG


def test_a_bound_expires_what_freshest_first_passes_over(tmp_path: Path) -> None:
    runs.train(configure(tmp_path, {**SURPLUS, "max_lag": 3}, "freshest", batches=8), tmp_path / "run")
    assert max(column(tmp_path / "run", "age/max")) == LAG
    decisions = [d for d in runs.lines(tmp_path / "run" / "decisions.jsonl") if d["what"] == "expired"]
    assert decisions
    assert {d["method"] for d in decisions} == {"pool"}
