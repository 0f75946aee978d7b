"""Groups of equal scores: counted everywhere, and credited where something shapes their rewards."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from support.updates import (
    MAX_LENGTH,
    gradient_of,
    identical,
    make_batch,
    make_learner,
    map_rollouts,
    tiny_model,
    worst,
)
from trimtab.control.protocol import (
    ShapeMethod,
    View,
)
from trimtab.control.registry import ChainMember
from trimtab.learner.update import Learner


def test_silent_groups_count_in_every_denominator_and_statistic_but_get_no_backward() -> None:
    model = tiny_model()
    batch = make_batch(model, [[1, 0, 0, 1], [1, 1, 1, 1]])
    learner, capture = make_learner(model, ["vcpo"], stop=True)
    (result,) = learner.train(batch)
    alone = gradient_of(model, ["vcpo"], dataclasses.replace(batch, groups=batch.groups[:1]))
    assert worst(capture.seen[0], [g / 2 for g in alone]) < 1e-10
    assert result.seen is not None
    assert len(result.seen.log_ratio_R) == 8
    assert result.seen.entropy_N is not None
    assert len(result.seen.entropy_N) == sum(r.actions for r in batch.rollouts)  # a mean over all tokens, not those with a backward


def test_shaped_rewards_are_credited_where_scores_are_equal() -> None:
    model = tiny_model()
    batch = make_batch(model, [[1, 1, 1, 1], [0, 0, 1, 0]])
    rewards = iter([0.2, 0.9, 0.4, 0.1, 0, 0, 1, 0])
    shaped = dataclasses.replace(
        batch, groups=tuple(map_rollouts(g, lambda r: dataclasses.replace(r, reward=float(next(rewards)))) for g in batch.groups)
    )
    as_scores = dataclasses.replace(
        shaped, groups=tuple(map_rollouts(g, lambda r: dataclasses.replace(r, score=r.reward, reward=None)) for g in shaped.groups)
    )
    got, want = (gradient_of(model, ["vcpo"], b) for b in (shaped, as_scores))
    assert identical(got, want)


class Brief(ShapeMethod):
    """Takes 0.1 off for every token."""

    name = "brief"

    def __init__(self) -> None:
        """No options."""

    def shape(self, view: View) -> Tensor:
        return torch.full_like(view.behavior_N, -0.1)


@pytest.mark.parametrize("methods", [["seq_tis", "grpo"], ["vcpo"]])
@pytest.mark.parametrize("micro_tokens", [None, 60, 20])
def test_a_shaping_method_changes_the_reward_that_credit_reads(methods: list[str], micro_tokens: int | None) -> None:
    model = tiny_model()
    batch = make_batch(model)
    learner, capture = make_learner(model, methods, stop=True, micro_tokens=micro_tokens)
    learner.chain.members.insert(0, ChainMember(Brief(), ""))
    learner = Learner(learner.model, learner.chain, learner.options, max_length=MAX_LENGTH)
    learner.train(batch)
    shorter = dataclasses.replace(
        batch,
        groups=tuple(map_rollouts(g, lambda r: dataclasses.replace(r, reward=r.score - 0.1 * r.actions)) for g in batch.groups),
    )
    assert worst(capture.seen[0], gradient_of(model, methods, shorter)) < 1e-10
