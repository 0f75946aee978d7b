"""What several updates of a batch, and several micro-batches of an update, have in common: ranges, frozen weights, shaped rewards."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.updates import behavior, gradient_of, make_batch, make_learner, map_rollouts, plain_logps, tiny_model, worst
from trimtab.control.protocol import StepResult
from trimtab.records import Batch


@pytest.mark.parametrize("name", ["m2po", "bapo"])
def test_what_is_found_over_the_update_does_not_depend_on_the_split(name: str) -> None:
    model = tiny_model()
    batch = make_batch(model, spread=0.6)
    whole = gradient_of(model, [name, "grpo"], batch)
    for micro_tokens in (1, 60):
        assert worst(gradient_of(model, [name, "grpo"], batch, micro_tokens=micro_tokens), whole) < 1e-10
    assert worst(gradient_of(model, ["ppo_clip", "grpo"], batch), whole) > 1e-3, "the range is not PPO's"


def decoupled(current: nn.Module, proximal: nn.Module, weighing: nn.Module, batch: Batch) -> list[Tensor]:
    """The gradient of decoupled PPO where the weight is ``weighing`` / behavior and the clip is around ``proximal``."""
    now = plain_logps(current, batch.rollouts)
    with torch.no_grad():
        anchor, weight = plain_logps(proximal, batch.rollouts), plain_logps(weighing, batch.rollouts)
    credit = [float(a) for g in batch.groups for a in (g.scores - g.scores.mean()) / (g.scores.std(ddof=1) + 1e-6)]
    losses = []
    for r, a, lp, old, w in zip(batch.rollouts, credit, now, anchor, weight, strict=True):
        u = (lp - old).exp()
        losses.append(((w - behavior(r)).exp() * torch.maximum(-u * a, -u.clamp(0.8, 1.2) * a)).mean())
    return list(torch.autograd.grad(torch.stack(losses).mean(), list(current.parameters())))


def test_the_behavior_weight_is_that_of_the_batch_s_start() -> None:
    """The second pass weighs by pi_proximal / mu of the batch's start, although the policy has moved."""
    model = tiny_model()
    batch = make_batch(model, spread=0.4)
    methods = [{"name": "decoupled", "action": "none"}, "grpo", "ppo_decoupled"]
    learner, capture = make_learner(model, methods, epochs=2, optimizer={"lr": 3e-3})
    stood: list[list[Tensor]] = []

    def after(result: StepResult) -> None:
        stood.append([p.detach().clone() for p in learner.model.parameters()])

    capture.after = after  # type: ignore[method-assign]
    assert all(r.applied for r in learner.train(batch))
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for p, found in zip(moved.parameters(), stood[0], strict=True):
            p.copy_(found)
    assert worst(capture.seen[0], decoupled(model, model, model, batch)) < 1e-9
    assert worst(capture.seen[1], decoupled(moved, model, model, batch)) < 1e-9
    for wrong in (decoupled(moved, moved, model, batch), decoupled(moved, model, moved, batch)):
        assert worst(capture.seen[1], wrong) > 1e-3


@pytest.mark.parametrize("methods", [["seq_tis", "grpo"], ["vcpo"]], ids=["grpo", "vcpo"])
def test_a_shaped_reward_counts_once_whatever_the_epoch(methods: list[Any]) -> None:
    """A KL to the reference, here the policy itself, in the reward: the same as a batch that came with it."""
    model = tiny_model()
    batch = make_batch(model, spread=0.4)
    learner, capture = make_learner(model, [*methods, {"name": "kl_reward", "beta": 0.3}], epochs=3, optimizer={"lr": 1e-30})
    learner.train(batch)
    with torch.no_grad():
        logps = iter(plain_logps(model, batch.rollouts))
    taxed = dataclasses.replace(
        batch,
        groups=tuple(
            map_rollouts(g, lambda r: dataclasses.replace(r, reward=r.score - 0.3 * float((behavior(r) - next(logps)).sum())))
            for g in batch.groups
        ),
    )
    want = gradient_of(model, methods, taxed)
    assert len(capture.seen) == 3
    for got in capture.seen:
        assert worst(got, want) < 1e-9
    assert worst(want, gradient_of(model, methods, batch)) > 1e-3
