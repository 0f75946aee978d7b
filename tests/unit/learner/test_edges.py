"""Rollouts that cannot speak: masked, or of a weight below float32; rewards that differ by rounding; ranks without a group."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from support.threads import Meeting, Threads
from support.updates import MIXED, behavior, gradient_of, make_batch, make_learner, map_rollouts, plain_logps, tiny_model, worst
from trimtab.records import Batch, Rollout, Segment


def shifted(batch: Batch, group: int, by: float) -> Batch:
    """The batch with every log importance weight of a group lowered by ``by``, spread over the rollout's tokens."""
    groups = list(batch.groups)
    groups[group] = map_rollouts(groups[group], lambda r: lowered(r, by))
    return dataclasses.replace(batch, groups=tuple(groups))


def lowered(r: Rollout, by: float) -> Rollout:
    """The rollout with its log importance weight lowered by ``by``."""

    def one(s: Segment) -> Segment:
        moved = np.where(s.action_mask, s.behavior_logp + by / r.actions, 0).astype(np.float32)
        return dataclasses.replace(s, behavior_logp=moved)

    return dataclasses.replace(r, segments=tuple(one(s) for s in r.segments))


@pytest.mark.parametrize("weighting", ["paper", "exact", "repo"])
def test_a_fully_masked_rollout_has_no_say_in_the_optimal_baseline(weighting: str) -> None:
    """Sequence masking takes rollouts of w > 2 out; b* is that of the others."""
    model = tiny_model()
    batch = make_batch(model, [[1, 0, 0, 1], [0.2, 0.9, 0.4, 0]], spread=0.0)
    first = batch.groups[0].rollouts
    batch = dataclasses.replace(
        batch, groups=(dataclasses.replace(batch.groups[0], rollouts=(lowered(first[0], -9.0), *first[1:])), batch.groups[1])
    )
    methods: list[Any] = [{"name": "seq_mis", "high": 2.0}, {"name": "opob", "weighting": weighting, "std": "none"}]
    got = gradient_of(model, methods, batch)
    logps = plain_logps(model, batch.rollouts)
    parameters = list(model.parameters())
    losses = []
    for g in (0, 1):
        places = [i for i in range(4 * g, 4 * g + 4) if i]
        norm2 = [sum(float(x.square().sum()) for x in torch.autograd.grad(logps[i].sum(), parameters, retain_graph=True)) for i in places]
        w = [float((logps[i].detach() - behavior(batch.rollouts[i])).sum().exp()) for i in places]
        per = [n * (x**2 if weighting == "paper" else x**4) for n, x in zip(norm2, w, strict=True)]
        if weighting == "exact":
            per = [n * (x / len(logps[i])) ** 2 for n, x, i in zip(norm2, w, places, strict=True)]
        score = [batch.rollouts[i].score for i in places]
        b = float(np.average(score, weights=per))
        losses += [-x * (r - b) * logps[i].mean() / 8 for x, r, i in zip(w, score, places, strict=True)]
    want = torch.autograd.grad(torch.stack(losses).sum(), parameters)
    assert worst(got, want) < 1e-9


@pytest.mark.parametrize("norms", ["bookkeeping", "two_pass", "two_buffer"])
@pytest.mark.parametrize("weighting", ["paper", "exact"])
@pytest.mark.parametrize("by", [80.0, 86.0, 88.5, 91.0, 95.0, 99.0, 103.0, 110.0, 2000.0])
def test_a_group_whose_weights_all_underflow_moves_nothing_and_stops_nothing(by: float, weighting: str, norms: str) -> None:
    """float32 ends at e^-88 (denormal, e^-103): the group's true gradient is nothing beside the other's, which is taken as ever."""
    model = tiny_model(torch.float32)
    batch = shifted(make_batch(model), 0, by)
    methods = ["vcpo", {"name": "opob", "weighting": weighting}]
    got = gradient_of(model, methods, batch, norms=norms)
    others = gradient_of(model, methods, dataclasses.replace(batch, groups=batch.groups[1:]), norms=norms)
    assert worst(got, [g * 12 / 16 for g in others]) < 1e-4


def test_the_baseline_of_weights_below_float32_is_that_of_their_ratios() -> None:
    """``exact``: W compares rollouts of a group, whatever the group's own scale."""
    model = tiny_model(torch.float32)
    batch = make_batch(model, [[1, 0, 0, 1], [1, 0.5, 0, 0]], spread=0.05)  # no weight reaches the cut of 8
    learner, _ = make_learner(model, ["vcpo", {"name": "opob", "weighting": "exact"}], stop=True)
    (result,) = learner.train(shifted(shifted(batch, 0, 200.0), 1, 90.0))
    plain, _ = make_learner(model, ["vcpo", {"name": "opob", "weighting": "exact"}], stop=True)
    (unshifted,) = plain.train(batch)
    b, want = (r.notes.metrics["opob/baseline"] for r in (result, unshifted))
    assert b[1] == want[1] == 2
    assert b[0] == pytest.approx(want[0], abs=2e-3)


@pytest.mark.parametrize("noise", [1e-9, 1.2e-7])
@pytest.mark.parametrize("methods", [["seq_tis", "grpo"], ["seq_tis", {"name": "grpo", "std": "none"}], ["vcpo"], ["seq_tis", "rloo"],
                                     ["seq_tis", {"name": "grpo", "std": "batch"}], ["seq_tis", "opo"]], ids=str)  # fmt: skip
def test_rewards_that_differ_by_rounding_are_equal(methods: list[Any], noise: float) -> None:
    model = tiny_model()
    batch = make_batch(model, [[1, 1 + noise, 1, 1], [0.1, 0.1, 0.1 + noise / 10, 0.1]])
    learner, _ = make_learner(model, methods)
    (result,) = learner.train(batch)
    assert (result.applied, result.reason) == (False, "no_signal: every coefficient is zero")


@pytest.mark.parametrize("methods", [["seq_tis", "grpo", "overlong"], ["seq_tis", "opo", "overlong"]], ids=str)
def test_equal_rewards_under_a_shaping_that_adds_nothing_are_no_signal(methods: list[Any]) -> None:
    """The mean of three times 0.1 is not 0.1: an optimizer that divides by its own noise would step on it."""
    model = tiny_model()
    batch = make_batch(model, [[0.1, 0.1, 0.1], [0.7, 0.7, 0.7]])
    methods = [*methods[:-1], {"name": "overlong", "max_length": 1000, "buffer": 1}]
    learner, _ = make_learner(model, methods)
    (result,) = learner.train(batch)
    assert result.reason == "no_signal: every coefficient is zero"


@pytest.mark.parametrize("methods", [["seq_tis", "grpo"], ["vcpo"], ["copc"], ["async_ppo"]], ids=str)
def test_a_rank_without_a_group_takes_the_step_of_the_others(methods: list[Any]) -> None:
    model = tiny_model()
    batch = make_batch(model, MIXED[:2])

    def seen(rank: int, meeting: Meeting) -> list[list[Tensor]]:
        learner, capture = make_learner(model, methods, optimizer={"lr": 1e-3})
        learner._tools.ranks = Threads(rank, meeting)
        assert [r.reason for r in learner.train(batch)] == [""]
        return capture.seen

    alone, meeting = seen(0, Meeting(1)), Meeting(3)
    with ThreadPoolExecutor(3) as pool:
        ranks = [f.result() for f in [pool.submit(seen, rank, meeting) for rank in range(3)]]
    for found in ranks:
        assert worst(found[0], alone[0]) < 1e-9
