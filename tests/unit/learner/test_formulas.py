"""The gradient of a whole update against plain autograd on the padded model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.formulas import clipped, optimal, reference, standardized, weighted
from support.updates import (
    gradient_of,
    make_batch,
    make_learner,
    tiny_model,
    worst,
)
from trimtab.learner.packing import pack


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("seed", [0, 1])
def test_sequence_tis_with_grpo(tied: bool, seed: int) -> None:
    model = tiny_model(tied=tied)
    batch = make_batch(model, seed=seed, spread=0.6)
    want = reference(model, batch, weighted, standardized(batch))
    assert worst(gradient_of(model, ["seq_tis", "grpo"], batch), want) < 1e-10


def test_ppo_clip_with_grpo() -> None:
    model = tiny_model()
    batch = make_batch(model, spread=0.3)
    want = reference(model, batch, clipped, standardized(batch))
    assert worst(gradient_of(model, ["ppo_clip", "grpo"], batch), want) < 1e-10


@pytest.mark.parametrize("norms", ["bookkeeping", "two_pass", "two_buffer", "auto"])
@pytest.mark.parametrize("weighting", ["paper", "exact", "repo"])
def test_vcpo(weighting: str, norms: str) -> None:
    model = tiny_model()
    batch = make_batch(model, spread=0.6)
    want = reference(model, batch, weighted, optimal(model, batch, weighting))
    got = gradient_of(model, ["vcpo", {"name": "opob", "weighting": weighting}], batch, norms=norms)
    assert worst(got, want) < 1e-10


def test_vcpo_in_float32() -> None:
    model = tiny_model()
    batch = make_batch(model, spread=0.6)
    want = reference(model, batch, weighted, optimal(model, batch, "paper"))
    got = gradient_of(model.float(), ["vcpo"], batch)
    assert worst([g.double() for g in got], want) < 2e-5


def test_bfloat16_keeps_log_probs_in_float32() -> None:
    model = tiny_model(torch.float32)
    batch = make_batch(model, [[1, 0, 0, 1], [0, 1, 0, 0]])
    learner, _ = make_learner(model.bfloat16(), ["vcpo"], stop=True)
    (result,) = learner.train(batch)
    assert result.reason == "capture: captured"
    assert result.seen is not None
    packed = pack(batch.rollouts)
    exact = (learner.model.score(packed) - packed.behavior_N).double().numpy()  # behavior as it was recorded, not rounded to bfloat16
    np.testing.assert_allclose(result.seen.log_ratio_N, exact, rtol=0, atol=1e-6)
