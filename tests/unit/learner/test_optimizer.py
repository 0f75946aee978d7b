"""Schedules and the optimizer: AdamW by hand, skipped steps that do not count, state that goes on bit for bit."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from trimtab.learner.optimizer import ScheduledAdamW, schedule_factor
from trimtab.learner.optimizer_options import AdamWOptions, ConstantOptions, CosineOptions, Schedule, WSDOptions


def wsd(**fields: float) -> WSDOptions:
    return WSDOptions.model_validate({"kind": "wsd", "warmup": 3, "stable": 4, "decay": 4, "floor": 0.2, **fields})


def cosine(**fields: float) -> CosineOptions:
    return CosineOptions.model_validate({"kind": "cosine", "warmup": 2, "decay": 4, **fields})


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (ConstantOptions(), [1, 1, 1]),
        (ConstantOptions(warmup=4), [0.25, 0.5, 0.75, 1, 1, 1]),
        (wsd(), [1 / 3, 2 / 3, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2]),
        (wsd(warmup=0, stable=1, floor=0), [1, 0.75, 0.5, 0.25, 0, 0]),
        (wsd(warmup=0, stable=2, decay=0, floor=0), [1, 1, 1, 1]),
        (cosine(), [0.5, 1, 0.8535533906, 0.5, 0.1464466094, 0, 0, 0]),
        (cosine(warmup=0, decay=3, floor=0.2), [0.8, 0.4, 0.2, 0.2]),
        (cosine(warmup=0, decay=1, floor=0.1), [0.1, 0.1]),
    ],
    ids=["constant", "warmup", "wsd", "to zero", "no decay", "cosine", "cosine with a floor", "cosine of one step"],
)
def test_the_factor_of_every_step(schedule: Schedule, factors: list[float]) -> None:
    assert [schedule_factor(schedule, t) for t in range(len(factors))] == pytest.approx(factors)


def parameters() -> list[nn.Parameter]:
    g = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(n, generator=g, dtype=torch.float64)) for n in (3, 5)]


def with_gradients(ps: list[nn.Parameter], seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    for p in ps:
        p.grad = torch.randn(p.shape, generator=g, dtype=torch.float64)


def test_adamw_by_hand() -> None:
    """theta <- theta - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay theta), with the multiplier on lr as a whole."""
    options = AdamWOptions(lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3)
    ps = parameters()
    optimizer = ScheduledAdamW(ps, options, ConstantOptions(warmup=2))
    theta = [p.detach().numpy().copy() for p in ps]
    m, v = [np.zeros_like(t) for t in theta], [np.zeros_like(t) for t in theta]
    for t, multiplier in enumerate((1.0, 0.5, 0.25), start=1):
        with_gradients(ps, t)
        lr = 0.1 * min(1.0, t / 2) * multiplier
        norm = 0.0
        for i, p in enumerate(ps):
            assert p.grad is not None
            g = p.grad.numpy()
            m[i], v[i] = 0.8 * m[i] + 0.2 * g, 0.95 * v[i] + 0.05 * g**2
            step = (m[i] / (1 - 0.8**t)) / (np.sqrt(v[i] / (1 - 0.95**t)) + 1e-3)
            norm += float((step**2).sum())
            theta[i] = theta[i] - lr * (step + 0.3 * theta[i])
        assert optimizer.update_norm() == pytest.approx(0.1 * min(1.0, t / 2) * norm**0.5, rel=1e-9)  # what a full step would be
        assert optimizer.step(multiplier).lr == pytest.approx(lr)
        for p, want in zip(ps, theta, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), want, rtol=1e-9)
    assert optimizer.applied == 3


@pytest.mark.parametrize("multiplier", [0.0, -1.0, 1.0000001, float("nan"), float("inf")])
def test_a_multiplier_outside_its_range_moves_nothing(multiplier: float) -> None:
    ps = parameters()
    optimizer = ScheduledAdamW(ps, AdamWOptions(), ConstantOptions(warmup=5))
    with_gradients(ps, 0)
    before = [p.detach().clone() for p in ps]
    with pytest.raises(ValueError, match=r"outside \(0, 1\]"):
        optimizer.step(multiplier)
    assert all(torch.equal(a, b) for a, b in zip(before, ps, strict=True))
    assert optimizer.state_dict() == {"applied": 0, "moments": [{}, {}]}


def test_update_norm_reads_and_moves_nothing() -> None:
    ps = parameters()
    optimizer = ScheduledAdamW(ps, AdamWOptions(), ConstantOptions())
    with_gradients(ps, 0)
    optimizer.step(1.0)
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.update_norm()
    assert str(optimizer.state_dict()) == str(saved)
    optimizer.zero_grad()
    assert optimizer.update_norm() == 0.0


@pytest.mark.parametrize("schedule", [wsd(), cosine()], ids=["wsd", "cosine"])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_restored_optimizer_goes_on_bit_for_bit(after: int, schedule: Schedule) -> None:
    a = parameters()
    options = AdamWOptions(lr=0.01)
    one = ScheduledAdamW(a, options, schedule)
    for t in range(after):
        with_gradients(a, t)
        one.step(0.7)
    b = [nn.Parameter(p.detach().clone()) for p in a]
    two = ScheduledAdamW(b, options, schedule)
    saved = one.state_dict()
    two.load_state_dict(saved)
    for t in range(after, after + 4):
        with_gradients(a, t)
        with_gradients(b, t)
        assert one.step(0.9) == two.step(0.9)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert two.applied == after + 4
    assert saved["applied"] == after  # a saved state is a copy, not a window


def test_state_of_another_model_is_refused() -> None:
    optimizer = ScheduledAdamW(parameters(), AdamWOptions(), ConstantOptions())
    with pytest.raises(ValueError, match="another number of parameters"):
        optimizer.load_state_dict({"applied": 1, "moments": [{}]})


def test_frozen_parameters_are_left_alone() -> None:
    ps = parameters()
    ps[0].requires_grad_(False)
    optimizer = ScheduledAdamW(ps, AdamWOptions(), ConstantOptions())
    assert optimizer.parameters == ps[1:]
