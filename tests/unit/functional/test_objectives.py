"""Every loss of the field and its gradient against formulas written in NumPy, at r = 1, and at the ends of the number line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trimtab.functional import clipping
from trimtab.functional.objectives import cispo, dppo, gspo, kimi, linear, ppo_clip, sapo, topr

Array = npt.NDArray[np.float64]
ROLLOUT = np.array([0, 0, 0, 1, 1, 2, 2, 2])
BEHAVIOR = np.array([-1.0, -0.3, -2.5, -1.5, -4.0, -1.2, -0.7, -3.0])
D = np.array([0.1, -0.2, 0.05, 1.2, -0.6, -0.01, 0.3, -2.0])
A = np.array([1.0, 1.0, 1.0, -0.5, -0.5, -2.0, -2.0, -2.0])
W = np.array([1.0, 2.0, 0.5, 1.0, 3.0, 0.25, 1.0, 1.0])


def over_rollouts(x_N: Array, f: Callable[[Array], float]) -> Array:
    return np.array([f(x_N[i == ROLLOUT]) for i in ROLLOUT])


def clipped(r: Array, a: Array, low: float, high: float) -> tuple[Array, Array]:
    """PPO's loss of r and its derivative, for a ratio whose derivative by the log-prob is itself."""
    outside = np.where(a > 0, r > 1 + high, r < 1 - low)
    return np.maximum(-a * r, -a * np.clip(r, 1 - low, 1 + high)), np.where(outside, 0.0, -a * r)


class Case(NamedTuple):
    """A loss, and (loss, derivative) by hand from log pi, d, A."""

    loss: Callable[..., Tensor]
    by_hand: Callable[[Array, Array, Array], tuple[Array, Array]]
    sequence: bool = False


def weighted(factor: Callable[[Array, Array, Array], Array]) -> Callable[[Array, Array, Array], tuple[Array, Array]]:
    """-factor A log pi, with the factor detached."""
    return lambda lp, d, a: (-factor(lp, d, a) * a * lp, -factor(lp, d, a) * a)


def sapo_by_hand(lp: Array, d: Array, a: Array) -> tuple[Array, Array]:
    r, tau = np.exp(d), np.where(a > 0, 1.0, 1.05)
    gate = 1 / (1 + np.exp(-tau * (r - 1)))
    return -4 / tau * gate * a, -4 * gate * (1 - gate) * r * a


def tv_trusted(lp: Array, d: Array, a: Array) -> Array:
    moved = np.exp(lp) - np.exp(lp - d)
    return ~np.where(a > 0, moved > 0.15, moved < -0.15)


def kl_trusted(lp: Array, d: Array, a: Array) -> Array:
    p, q = np.exp(lp - d), np.exp(lp)
    kl = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    return ~((kl > 0.05) & np.where(a > 0, q > p, q < p))


def with_trust(within: Callable[..., Tensor], threshold: float) -> Callable[..., Tensor]:
    return lambda current, old, a, **options: dppo(current, old, a, within(current, old, a, threshold, threshold), **options)


def placed(loss: Callable[..., Tensor], **extra: object) -> Callable[..., Tensor]:
    def call(current: Tensor, old: Tensor, a: Tensor, **options: object) -> Tensor:
        rollout = torch.from_numpy(ROLLOUT)[: current.shape[0]]
        return loss(current, old, a, rollout, 3, **extra, **options)

    return call


CASES = {
    "ppo_clip": Case(ppo_clip, lambda lp, d, a: clipped(np.exp(d), a, 0.2, 0.2)),
    "clip_higher": Case(lambda *x, **k: ppo_clip(*x, eps_high=0.28, **k), lambda lp, d, a: clipped(np.exp(d), a, 0.2, 0.28)),
    "gspo": Case(placed(gspo), lambda lp, d, a: clipped(np.exp(over_rollouts(d, np.mean)), a, 3e-4, 4e-4), True),
    "gspo_wide": Case(
        placed(gspo, eps_low=0.4, eps_high=0.4), lambda lp, d, a: clipped(np.exp(over_rollouts(d, np.mean)), a, 0.4, 0.4), True
    ),
    "cispo": Case(cispo, weighted(lambda lp, d, a: np.minimum(np.exp(d), 5.0))),
    "cispo_verl": Case(lambda *x, **k: cispo(*x, low=0.8, high=1.2, **k), weighted(lambda lp, d, a: np.clip(np.exp(d), 0.8, 1.2))),
    "sapo": Case(sapo, sapo_by_hand),
    "dppo_tv": Case(with_trust(clipping.within_tv, 0.15), weighted(lambda lp, d, a: np.minimum(np.exp(d), 20.0) * tv_trusted(lp, d, a))),
    "dppo_kl": Case(
        with_trust(clipping.within_binary_kl, 0.05), weighted(lambda lp, d, a: np.minimum(np.exp(d), 20.0) * kl_trusted(lp, d, a))
    ),
    "topr": Case(placed(topr), weighted(lambda lp, d, a: np.where(a > 0, 1.0, np.minimum(np.exp(over_rollouts(d, np.sum)), 1.0))), True),
    "topr_token": Case(placed(topr, sequence=False), weighted(lambda lp, d, a: np.where(a > 0, 1.0, np.minimum(np.exp(d), 1.0)))),
    "kimi": Case(kimi, lambda lp, d, a: (-a * lp + 0.05 * d**2, -a + 0.1 * d)),
}
each = pytest.mark.parametrize("name", CASES)


def value_and_gradient(
    name: str, current: Array | Tensor, old: Array | Tensor, a: Array | Tensor, **options: Tensor
) -> tuple[Tensor, Tensor]:
    leaf = torch.as_tensor(current).clone().requires_grad_()
    loss = CASES[name].loss(leaf, torch.as_tensor(old), torch.as_tensor(a), **options)
    return loss.detach(), torch.autograd.grad(loss.sum(), leaf)[0]


@each
def test_loss_and_gradient_by_hand(name: str) -> None:
    loss, gradient = value_and_gradient(name, BEHAVIOR + D, BEHAVIOR, A)
    want_loss, want_gradient = CASES[name].by_hand(BEHAVIOR + D, D, A)
    np.testing.assert_allclose(loss, want_loss, rtol=1e-12)
    np.testing.assert_allclose(gradient, want_gradient, rtol=1e-12, atol=1e-15)


@each
def test_a_weight_multiplies_loss_and_gradient(name: str) -> None:
    loss, gradient = value_and_gradient(name, BEHAVIOR + D, BEHAVIOR, A, weight_N=torch.from_numpy(W))
    want_loss, want_gradient = CASES[name].by_hand(BEHAVIOR + D, D, A)
    np.testing.assert_allclose(loss, W * want_loss, rtol=1e-12)
    np.testing.assert_allclose(gradient, W * want_gradient, rtol=1e-12, atol=1e-15)


@each
def test_on_policy_the_gradient_is_the_policy_gradient(name: str) -> None:
    _, gradient = value_and_gradient(name, BEHAVIOR, BEHAVIOR, A, weight_N=torch.from_numpy(W))
    np.testing.assert_allclose(gradient, -W * A, rtol=1e-12)


@each
def test_constants_carry_no_gradient(name: str) -> None:
    old, a, w = (torch.from_numpy(x).clone().requires_grad_() for x in (BEHAVIOR, A, W))
    current = torch.from_numpy(BEHAVIOR + D).requires_grad_()
    CASES[name].loss(current, old, a, weight_N=w).sum().backward()
    assert old.grad is None
    assert a.grad is None
    assert w.grad is None


@each
def test_what_a_masked_token_holds_reaches_nothing(name: str) -> None:
    """A sequence ratio spans the whole rollout: there the masked token shares its rollout with no other."""
    n, hidden = 8, [3, 4]  # all of rollout 1
    keep = torch.ones(n, dtype=torch.bool)
    keep[hidden] = False
    current, old, a, w = (torch.from_numpy(x.copy()) for x in (BEHAVIOR + D, BEHAVIOR, A, W))
    want_loss, want_gradient = value_and_gradient(name, current, old, a, weight_N=w)
    for broken in (math.nan, math.inf, -math.inf):
        for column in (current, old, a, w):
            column[hidden] = broken
        loss, gradient = value_and_gradient(name, current, old, a, weight_N=w, keep_N=keep)
        assert torch.equal(loss[~keep], torch.zeros(2, dtype=torch.float64))
        assert torch.equal(gradient[~keep], torch.zeros(2, dtype=torch.float64))
        assert torch.equal(loss[keep], want_loss[keep])
        assert torch.equal(gradient[keep], want_gradient[keep])


@each
def test_a_broken_action_token_breaks_the_loss(name: str) -> None:
    """So that the step is refused. Learners refuse broken log-probs before; a broken advantage shows in the gradient too."""
    for a in (1.0, -1.0):
        for column in range(3):
            values = [torch.from_numpy(x.copy()) for x in (BEHAVIOR + D, BEHAVIOR, np.full(8, a))]
            values[column][5] = math.nan
            loss, gradient = value_and_gradient(name, *values)
            if (name.startswith("topr") and a > 0 and column == 1) or (name == "kimi" and column == 1):
                continue  # the anchor is not read there, or read in the square alone
            assert torch.isnan(loss[5])
            assert column != 2 or torch.isnan(gradient[5])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1e4, 0), st.floats(-1e4, 1e4), st.sampled_from([-3.0, 0.0, 3.0])), min_size=1, max_size=8),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_any_finite_log_ratio_gives_a_finite_loss_and_gradient(tokens: list[tuple[float, float, float]], dtype: torch.dtype) -> None:
    behavior, d, a = (torch.tensor(x, dtype=dtype) for x in zip(*tokens, strict=True))
    for name in CASES:
        loss, gradient = value_and_gradient(name, behavior + d, behavior, a)
        assert torch.isfinite(loss).all(), name
        assert torch.isfinite(gradient).all(), name
        assert (gradient[a == 0] == 0).all() or name == "kimi"


def test_no_tokens_no_loss() -> None:
    none = torch.zeros(0)
    for name in CASES:
        assert CASES[name].loss(none, none, none).shape == (0,)


def test_gspo_is_the_gradient_of_the_sequence_objective() -> None:
    """(1/R) sum_i min(s_i A_i, clip(s_i) A_i), differentiated as such, against the token form under seq_mean_token_mean."""
    low, high = 0.2, 0.2
    lengths = np.bincount(ROLLOUT)
    rollout = torch.from_numpy(ROLLOUT)
    current = torch.from_numpy(BEHAVIOR + D).requires_grad_()
    mean_R = torch.zeros(3, dtype=torch.float64).index_add(0, rollout, current - torch.from_numpy(BEHAVIOR)) / torch.from_numpy(lengths)
    s_R, a_R = mean_R.exp(), torch.tensor([1.0, -0.5, -2.0], dtype=torch.float64)
    whole = -torch.minimum(s_R * a_R, s_R.clamp(1 - low, 1 + high) * a_R).mean()
    scale = 1.0 / (3 * torch.from_numpy(lengths).double()[rollout])
    tokens = gspo(current, torch.from_numpy(BEHAVIOR), torch.from_numpy(A), rollout, 3, eps_low=low, eps_high=high)
    assert float((scale * tokens).sum().detach()) == pytest.approx(float(whole.detach()), rel=1e-12)
    want, got = (torch.autograd.grad(x, current, retain_graph=True)[0] for x in (whole, (scale * tokens).sum()))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("factor", [0.0, 0.5, -2.0])
def test_cispo_is_linear_in_the_advantage(factor: float) -> None:
    current, old, a = (torch.from_numpy(x) for x in (BEHAVIOR + D, BEHAVIOR, A))
    b = torch.linspace(-1, 1, 8, dtype=torch.float64)
    torch.testing.assert_close(cispo(current, old, a + factor * b), cispo(current, old, a) + factor * cispo(current, old, b))


def test_topr_leaves_good_tokens_alone_and_forgets_bad_ones_that_are_gone() -> None:
    current, old = torch.tensor([-50.0, -50.0, -1.0]), torch.tensor([-1.0, -1.0, -50.0])
    a = torch.tensor([1.0, -1.0, -1.0])
    _, gradient = value_and_gradient("topr_token", current, old, a)
    np.testing.assert_allclose(gradient, [-1.0, math.exp(-49.0), 1.0], rtol=1e-6)


def test_the_gate_of_sapo_fades_out_on_both_sides() -> None:
    d = torch.tensor([-8.0, -1.0, 0.0, 1.0, 4.0], dtype=torch.float64)
    _, gradient = value_and_gradient("sapo", d, torch.zeros_like(d), torch.ones_like(d))
    size = gradient.abs()
    assert size[2] == 1.0
    assert size[0] < 1e-3
    assert size[4] < 1e-20
    assert size[0] < size[1] < size[2]
    assert size[4] < size[3]


def test_opmd_is_the_policy_gradient_over_one_plus_tau() -> None:
    current, a = torch.from_numpy(BEHAVIOR).requires_grad_(), torch.from_numpy(A)
    loss = linear(current, torch.full((8,), 1 / 3.0, dtype=torch.float64), a)
    np.testing.assert_allclose(torch.autograd.grad(loss.sum(), current)[0], -A / (1 + 2.0), rtol=1e-15)
