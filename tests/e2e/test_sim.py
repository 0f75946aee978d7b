"""The discrete-event model against real local runs, from times measured in those runs: within 10 %.

Generation is dominated by the latency engine's fixed step time, and a slow learner sleeps: so little CPU is used that a busy machine
changes both runs alike, and the model replays what each slot and each batch took. What is compared is the loop: who waits, what ages.
The runs are stopped before the end of their plan, where samplers have nothing left to do.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from support import runs
from trimtab.records import Json, StoppedByRule
from trimtab.sim.fit import fit, measured
from trimtab.sim.loop import simulate
from trimtab.telemetry.metrics import BatchRecord

pytestmark = pytest.mark.slow

BATCHES, WARM, SEEDS, PROMPTS = 60, 10, 3, 100
SMALL = 0.3  # an idle share below this is compared by its difference: it is that of two nearly equal rates, or of single waits
GAP = 0.03


class Over(StoppedByRule):
    """The run has had its batches."""


class Sleeping(runs.Quiet):
    """The learner's thread does nothing for a while after each batch, as if it trained a larger model elsewhere."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def batch(self, record: BatchRecord, waiting_for: str) -> None:
        time.sleep(self._seconds)
        if record.batch + 1 == BATCHES:
            raise Over("enough")


@pytest.mark.parametrize(
    ("sleep", "runtime", "engine", "rollout"),
    [
        pytest.param(
            0.0,
            {"max_lag": 16, "depth": 8},
            {"step_s": 0.05, "slots": 12},
            {"max_new_tokens": 32, "prompts_per_batch": 2, "group_size": 2, "held_batches": 6},
            id="the learner waits, weights are swapped in flight",
        ),
        pytest.param(
            0.4,
            {"max_lag": 8, "depth": 4},
            {"step_s": 0.02, "slots": 24},
            {"max_new_tokens": 10, "prompts_per_batch": 4, "group_size": 4},
            id="the sampler waits half of its time, groups age in the pool",
        ),
        pytest.param(
            0.3,
            {"max_lag": 8, "depth": 4},
            {"step_s": 0.03, "slots": 24},
            {"max_new_tokens": 10, "prompts_per_batch": 4, "group_size": 4},
            id="both are nearly as fast",
        ),
        pytest.param(
            0.2,
            {"max_lag": 0, "depth": 0},
            {"step_s": 0.02, "slots": 24},
            {"max_new_tokens": 16, "prompts_per_batch": 4, "group_size": 4},
            id="synchronous, each waits for the other",
        ),
    ],
)
def test_model_and_run_agree(
    tmp_path: Path, sleep: float, runtime: dict[str, Json], engine: dict[str, Json], rollout: dict[str, Json]
) -> None:
    config = runs.config(
        tmp_path,
        ["vcpo"],
        rollout=rollout,
        learner={"batches": 2 * BATCHES},
        runtime={"kind": "local", "start_deadline_s": 600.0, **runtime},
        engine={"kind": "latency", **engine},
        store={"every": 10 * BATCHES},
    )
    with pytest.raises(Over):
        runs.train(config, tmp_path / "run", Sleeping(sleep))
    real = measured(tmp_path / "run", WARM)
    model = fit(tmp_path / "run", WARM)
    sims = [simulate(config, model, seed, prompts=PROMPTS, batches=BATCHES).figures(WARM) for seed in range(SEEDS)]

    def mean(name: str) -> float:
        return float(sum(getattr(s, name) for s in sims)) / SEEDS

    assert real.batches == BATCHES - WARM
    for name in ("batches_per_s", "age", "learner_idle", "sampler_idle"):
        is_share = name.endswith("_idle")
        gap = {"abs": GAP} if is_share and getattr(real, name) < SMALL else {"rel": 0.10}
        assert mean(name) == pytest.approx(getattr(real, name), **gap), f"{name}: {real} {sims}"
