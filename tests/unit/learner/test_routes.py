"""The ways to per-sequence norms end in the same weights, and coefficients of next to nothing are no error."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from support.updates import (
    make_batch,
    make_learner,
    map_rollouts,
    tiny_model,
    weights,
    worst,
)
from trimtab.records import Rollout


@pytest.mark.parametrize("micro_tokens", [None, 60])
def test_the_three_routes_train_the_same_weights(micro_tokens: int | None) -> None:
    model = tiny_model()
    batches = [make_batch(model, seed=i, number=i, spread=0.4) for i in range(5)]
    ends = {}
    for route in ("bookkeeping", "two_pass", "two_buffer"):
        learner, _ = make_learner(model, ["vcpo"], norms=route, micro_tokens=micro_tokens, optimizer={"lr": 1e-3})
        assert all(learner.train(b)[0].applied for b in batches)
        ends[route] = weights(learner)
    assert worst(ends["two_pass"], ends["bookkeeping"]) < 1e-8
    assert worst(ends["two_buffer"], ends["bookkeeping"]) < 1e-8
    assert worst(ends["bookkeeping"], list(model.parameters())) > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norms", ["bookkeeping", "two_pass", "two_buffer"])
@pytest.mark.parametrize("all_groups", [True, False])
def test_negligible_coefficients_are_no_error(norms: str, dtype: torch.dtype, all_groups: bool) -> None:
    """One rollout of a group is so unlikely now that it weighs nothing: b* is the others' reward and every coefficient about 0."""
    model = tiny_model(dtype)
    batch = make_batch(model, [[1, 0, 1, 1], [0, 0, 1, 0]])

    def unlikely(r: Rollout) -> Rollout:
        if r.member != lone:
            return r
        shifted = (dataclasses.replace(s, behavior_logp=np.where(s.action_mask, s.behavior_logp + 80, s.behavior_logp)) for s in r.segments)
        return dataclasses.replace(r, segments=tuple(shifted))

    groups = []
    for lone, g in zip((1, 2), batch.groups, strict=True):
        groups.append(map_rollouts(g, unlikely) if all_groups or lone == 1 else g)
    for std in ("group", "none"):
        learner, _ = make_learner(model, ["vcpo", {"name": "opob", "std": std}], norms=norms)
        (result,) = learner.train(dataclasses.replace(batch, groups=tuple(groups)))
        assert result.applied or result.reason.startswith("no_signal")
