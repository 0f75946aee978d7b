"""Tokens without a usable behavior log-prob, and scores that are not numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from torch import Tensor

from support.formulas import reference, sequence_weight, standardized
from support.updates import (
    gradient_of,
    identical,
    make_batch,
    make_learner,
    map_segments,
    state,
    tiny_model,
    worst,
)
from trimtab.records import Batch, Rollout, Segment


def invalidated(batch: Batch, chosen: Callable[[Segment], np.ndarray]) -> tuple[Batch, Batch]:
    """(non-finite behavior log-probs on the chosen action tokens, the same tokens off the mask)."""

    def nan(s: Segment) -> Segment:
        bad = np.where(np.arange(len(s.tokens)) % 2 == 0, np.nan, np.inf).astype(np.float32)
        return dataclasses.replace(s, behavior_logp=np.where(chosen(s) & s.action_mask, bad, s.behavior_logp))

    def off(s: Segment) -> Segment:
        gone = chosen(s) & s.action_mask
        return dataclasses.replace(
            s,
            action_mask=s.action_mask & ~gone,
            behavior_logp=np.where(gone, np.float32(0), s.behavior_logp),
            versions=np.where(gone, np.int32(-1), s.versions),
        )

    return tuple(dataclasses.replace(batch, groups=tuple(map_segments(g, f) for g in batch.groups)) for f in (nan, off))  # type: ignore[return-value]


@pytest.mark.parametrize("methods", [["seq_tis", "grpo"], ["vcpo"]])
@pytest.mark.parametrize("reduction", ["seq_mean_token_mean", "token_mean"])
def test_a_token_without_a_usable_behavior_log_prob_leaves_the_mask_before_any_denominator(methods: list[str], reduction: str) -> None:
    model = tiny_model()
    bad, clean = invalidated(make_batch(model), lambda s: np.arange(len(s.tokens)) % 3 == 0)
    learner, capture = make_learner(model, methods, stop=True, reduction=reduction)
    (result,) = learner.train(bad)
    dropped = sum(a.actions - b.actions for a, b in zip(bad.rollouts, clean.rollouts, strict=True))
    assert (result.invalid_tokens, result.reason) == (dropped, "capture: captured")
    assert dropped > 10
    assert identical(capture.seen[0], gradient_of(model, methods, clean, reduction=reduction))


@pytest.mark.parametrize("micro_tokens", [None, 1, 30])
def test_rollouts_and_groups_without_a_valid_token_contribute_nothing(micro_tokens: int | None) -> None:
    model = tiny_model()
    batch = make_batch(model)
    gone = {id(s) for r in (*batch.groups[1].rollouts, batch.groups[0].rollouts[0]) for s in r.segments}
    bad, _ = invalidated(batch, lambda s: np.full(len(s.tokens), id(s) in gone))

    def loss(logp: Tensor, r: Rollout, a: float) -> Tensor:
        return (0.0 if any(id(s) in gone for s in r.segments) else -a * sequence_weight(logp, r)) * logp

    left = [
        dataclasses.replace(g, rollouts=tuple(r for r in g.rollouts if not any(id(s) in gone for s in r.segments))) for g in batch.groups
    ]
    clean = dataclasses.replace(batch, groups=tuple(g for g in left if g.rollouts))
    want = reference(model, clean, loss, standardized(clean))  # as if they had never been: in mean, std and number of rollouts
    assert worst(gradient_of(model, ["seq_tis", "grpo"], bad, micro_tokens=micro_tokens), want) < 1e-10
    learner, _ = make_learner(model, ["vcpo"], micro_tokens=micro_tokens)
    (result,) = learner.train(bad)
    assert result.applied
    assert result.empty_rollouts == 5
    assert result.seen is not None
    assert len(result.seen.log_ratio_R) == len(clean.rollouts)  # a ratio of nothing is no ratio of 1


def test_a_batch_without_a_valid_token_is_a_refused_step() -> None:
    model = tiny_model()
    bad, _ = invalidated(make_batch(model), lambda s: np.full(len(s.tokens), True))
    learner, _ = make_learner(model, ["vcpo"])
    before = state(learner)
    (result,) = learner.train(bad)
    assert (result.applied, result.reason) == (False, "no valid action token")
    assert identical(state(learner), before)


def test_a_nan_score_is_no_equal_score() -> None:
    model = tiny_model()
    batch = make_batch(model, [[1, float("nan"), 0, 1], [1, 0, 1, 0]])
    learner, _ = make_learner(model, ["seq_tis", "grpo"])
    (result,) = learner.train(batch)
    assert result.reason == "non-finite loss"
