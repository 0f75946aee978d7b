"""Objectives and reductions against NumPy, and the denominators under masking and splitting."""

import math

import numpy as np
import pytest
import torch

from trimtab.functional.objectives import linear, ppo_clip
from trimtab.functional.reduce import token_scale

LOG_R = np.array([-0.5, -0.1, 0.0, 0.15, 0.5, 2.0])


def ppo(log_r, a, low=0.2, high=0.2, dual=None):
    r = np.exp(log_r)
    loss = np.maximum(-a * r, -a * np.clip(r, 1 - low, 1 + high))
    return loss if dual is None or a >= 0 else np.minimum(loss, -a * dual)


@pytest.mark.parametrize("a", [1.5, -0.7, 0.0])
@pytest.mark.parametrize(("low", "high", "dual"), [(0.2, 0.2, None), (0.2, 0.28, None), (0.2, 0.2, 3.0)])
def test_ppo_clip_equals_its_definition(a, low, high, dual):
    old = torch.linspace(-3, -1, 6, dtype=torch.float64)
    current = (old + torch.tensor(LOG_R)).requires_grad_()
    got = ppo_clip(current, old, torch.full((6,), a, dtype=torch.float64), eps_low=low, eps_high=high, dual_clip=dual)
    np.testing.assert_allclose(got.detach(), ppo(LOG_R, a, low, high, dual), rtol=1e-13, atol=1e-15)
    got.sum().backward()
    h = 1e-6
    slope = (ppo(LOG_R + h, a, low, high, dual) - ppo(LOG_R - h, a, low, high, dual)) / (2 * h)
    np.testing.assert_allclose(current.grad, slope, rtol=1e-6, atol=1e-9)


def test_dual_clip_caps_the_loss_of_a_bad_token_only():
    old, current = torch.zeros(2), torch.full((2,), 2.0)
    a = torch.tensor([-1.0, 1.0])
    assert ppo_clip(current, old, a).tolist() == [pytest.approx(math.exp(2.0)), pytest.approx(-1.2)]
    assert ppo_clip(current, old, a, dual_clip=3.0).tolist() == [3.0, pytest.approx(-1.2)]


def test_on_policy_ppo_has_the_gradient_of_the_linear_objective():
    current = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    a = torch.tensor([1.0, -2.0, 0.0, 0.5, 3.0], dtype=torch.float64)
    w = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    g1 = torch.autograd.grad(ppo_clip(current, current, a, weight_N=w).sum(), current)[0]
    g2 = torch.autograd.grad(linear(current, w, a).sum(), current)[0]
    assert torch.equal(g1, g2)
    assert torch.equal(g2, -w * a)


def test_constants_carry_no_gradient():
    leaf = torch.ones(3, requires_grad=True)
    current = torch.zeros(3, requires_grad=True)
    (linear(current, leaf, leaf) + ppo_clip(current, leaf, leaf, weight_N=leaf)).sum().backward()
    assert leaf.grad is None
    assert current.grad is not None


def test_a_broken_weight_or_advantage_off_the_mask_is_not_multiplied_in():
    keep, broken = torch.tensor([True, False]), torch.tensor([1.0, math.nan])
    current = torch.zeros(2, requires_grad=True)
    loss = linear(current, broken, broken, keep) + ppo_clip(current, broken, broken, weight_N=broken, keep_N=keep)
    assert loss[1] == 0.0
    loss.sum().backward()
    assert current.grad[1] == 0.0


def test_the_linear_objective_is_linear_in_the_advantage():
    current = torch.tensor([-1.0, -2.0])
    a, b, w = torch.tensor([1.0, 2.0]), torch.tensor([-0.5, 4.0]), torch.tensor([0.25, 3.0])
    torch.testing.assert_close(linear(current, w, a + b), linear(current, w, a) + linear(current, w, b))
    assert linear(current, w, a).tolist() == [0.25, 12.0]


LENGTH, ROLLOUT = torch.tensor([2, 0, 4]), torch.tensor([0, 0, 2, 2, 2, 2])
TOTALS = {"rollouts": 3, "tokens": 6, "max_length": 10}


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("seq_mean_token_mean", lambda a, b: (a.mean() + b.mean()) / 3),
        ("token_mean", lambda a, b: (a.sum() + b.sum()) / 6),
        ("seq_mean_token_sum", lambda a, b: (a.sum() + b.sum()) / 3),
        ("seq_mean_token_sum_norm", lambda a, b: (a.sum() + b.sum()) / 30),
    ],
)
def test_reductions(reduction, expected):
    loss = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    scale = token_scale(reduction, LENGTH, ROLLOUT, **TOTALS)
    assert scale.dtype == torch.float64
    assert float((scale.numpy() * loss).sum()) == pytest.approx(expected(loss[:2], loss[2:]), rel=1e-14)


@pytest.mark.parametrize("reduction", ["seq_mean_token_mean", "token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"])
def test_splitting_into_micro_batches_changes_no_factor(reduction):
    whole = token_scale(reduction, LENGTH, ROLLOUT, **TOTALS)
    first = token_scale(reduction, LENGTH[:2], torch.tensor([0, 0]), **TOTALS)
    second = token_scale(reduction, LENGTH[2:], torch.tensor([0, 0, 0, 0]), **TOTALS)
    assert torch.equal(torch.cat([first, second]), whole)


def test_a_reduction_from_the_protocol_is_understood():
    from trimtab.control.protocol import Reduction

    for r in Reduction:
        assert token_scale(r, LENGTH, ROLLOUT, **TOTALS).shape == (6,)


def test_bad_reductions_are_refused():
    with pytest.raises(ValueError, match="seq_mean_token_mean"):
        token_scale("mean", LENGTH, ROLLOUT, **TOTALS)
    with pytest.raises(ValueError, match="denominator is 0"):
        token_scale("token_mean", LENGTH, ROLLOUT, rollouts=3, tokens=0, max_length=10)


def test_no_tokens_have_no_factors():
    none = torch.zeros(0, dtype=torch.int64)
    assert token_scale("token_mean", none, none, rollouts=0, tokens=0, max_length=10).shape == (0,)
    assert token_scale("seq_mean_token_mean", torch.tensor([0]), none, rollouts=1, tokens=0, max_length=10).shape == (0,)
