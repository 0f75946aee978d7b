"""A run on a model whose vocabulary is padded beyond its tokenizer: what has no token is never sampled, and the count is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from support import runs
from support.tiny import tiny_folder
from trimtab.engines.checkpoint import load_policy
from trimtab.records import Json
from trimtab.store import rollout_log

BATCHES, KNOWN, PADDING = 4, 17, 64


@pytest.mark.parametrize(
    "runtime",
    [{"kind": "lockstep", "lag": 1}, pytest.param({"kind": "local", "max_lag": 2}, marks=pytest.mark.slow)],
    ids=["lockstep", "local"],
)
def test_no_rollout_holds_an_id_without_a_token(tmp_path: Path, runtime: dict[str, Json]) -> None:
    runs.config(tmp_path, ["vcpo"])  # writes the task
    tiny_folder(tmp_path / "model", padding=PADDING)
    policy = load_policy(tmp_path / "model")
    with torch.no_grad():
        mass = policy.model(torch.tensor([[1, 5, 6, 7]])).logits.softmax(-1)[0, :, KNOWN:].sum(-1)
    assert float(mass.min()) > 0.5  # nearly every rollout would
    learner: dict[str, Json] = {"batches": BATCHES, "optimizer": {"lr": runs.LR}}
    methods: list[Json] = ["vcpo", {"name": "kl_reward", "beta": 0.01}]  # a reference model, too
    config = runs.config(tmp_path, methods, runtime=runtime, learner=learner)
    assert runs.train(config, tmp_path / "run").status == "done"
    groups = [g for entry in rollout_log.read(tmp_path / "run" / "rollouts") for g in entry.groups]
    segments = [s for g in groups for r in g.rollouts for s in r.segments]
    assert len(segments) == BATCHES * runs.GROUPS * runs.MEMBERS
    assert max(int(s.tokens.max()) for s in segments) < KNOWN
    assert all(np.isfinite(s.behavior_logp).all() for s in segments)
    entropies = [r["metrics"]["entropy/mean"] for r in runs.lines(tmp_path / "run" / "metrics.jsonl")]  # type: ignore[index,call-overload]
    assert all(n / d < np.log(KNOWN) for n, d in entropies)
    ratios = [r["metrics"]["ratio/max"] for r in runs.lines(tmp_path / "run" / "metrics.jsonl")]  # type: ignore[index,call-overload]
    assert ratios[0] == pytest.approx(1.0, abs=1e-3)  # sampled and scored are one distribution
    log = [json.loads(line) for line in (tmp_path / "run" / "run.log").read_text().splitlines()]
    said = [row["message"] for row in log if "token ids" in row["message"]]
    assert said == ["64 of the model's 81 token ids are not in its tokenizer: they are never sampled and take no part in training"]
