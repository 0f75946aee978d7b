"""A run on step-level, shifted rewards: they reach the log on the tokens that earned them, and it resumes to the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from support import runs
from support.tiny import tiny_tokenizer
from trimtab.records import Json, Rollout
from trimtab.telemetry.metrics import BatchRecord

BATCHES = 8
SHIFTED: Mapping[str, Json] = {"scale": 2.0, "offset": -1.0}


class Stopping(runs.Quiet):
    """Raises after so many batches, as a crash would."""

    def batch(self, record: BatchRecord, waiting_for: str) -> None:
        if record.batch + 1 == 6:
            raise KeyboardInterrupt


def columns(rollout: Rollout) -> tuple[float, float | None, list[bytes]]:
    return rollout.score, rollout.reward, [b"" if s.reward is None else s.reward.tobytes() for s in rollout.segments]


def test_steps_reach_the_log_and_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    config = runs.config(
        tmp_path,
        ["seq_tis", "opob"],
        task={"reward": "support.rewards:digits", "shaping": dict(SHIFTED)},
        runtime={"kind": "lockstep", "lag": 2},
        learner={"batches": BATCHES, "optimizer": {"lr": runs.LR}},
        store={"every": 4},
    )
    assert runs.train(config, tmp_path / "whole").status == "done"
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        runs.train(config, run, Stopping())
    assert runs.resume(run).status == "done"

    assert runs.digest_after(run, BATCHES) == runs.digest_after(tmp_path / "whole", BATCHES)
    ours, theirs = runs.trained(run), runs.trained(tmp_path / "whole")
    assert {key: columns(r) for key, r in ours.items()} == {key: columns(r) for key, r in theirs.items()}

    one = tiny_tokenizer().convert_tokens_to_ids("1")
    earned = set()
    for rollout in ours.values():
        (segment,) = rollout.segments
        assert segment.reward is not None
        actions = np.flatnonzero(segment.action_mask)
        expected = np.where(segment.action_mask & (segment.tokens == one), 2 / 3, 0.0)
        expected[actions[-1]] -= 1.0
        assert segment.reward.tolist() == expected.astype(np.float32).tolist()
        assert rollout.reward == segment.reward.sum(dtype=np.float64)
        earned.add(rollout.reward)
    assert len(earned) > 2, "not the score in disguise"


def test_the_shift_alone_does_not_move_a_group_mean(tmp_path: Path) -> None:
    """Advantages from group means and standard deviations ignore a shift: the weights differ by the epsilon of the std at most."""
    paths = []
    for name, shaping in (("plain", {}), ("shifted", SHIFTED)):
        config = runs.config(
            tmp_path,
            ["seq_tis", "grpo"],
            task={"reward": "support.rewards:digit", "shaping": dict(shaping)},
            runtime={"kind": "lockstep", "lag": 1},
            learner={"batches": 3, "optimizer": {"lr": runs.LR}},
        )
        paths.append(tmp_path / name)
        assert runs.train(config, paths[-1]).status == "done"
    plain, shifted = (runs.trained(path) for path in paths)
    assert {r.reward for r in plain.values()} == {None}
    assert {(r.score, r.reward) for r in shifted.values()} == {(0.0, -1.0), (1.0, 1.0)}
    assert runs.furthest(runs.weights_after(paths[0], 3), runs.weights_after(paths[1], 3)) < 1e-6
