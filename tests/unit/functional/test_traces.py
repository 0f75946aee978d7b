"""Traces over values against plain loops in NumPy, with observations between the turns, and to the digits of known examples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trimtab import functional as F

# Four positions, the third an observation: what a loop over the padded row sees, and what the flat columns hold.
REWARD, VALUE, RATIO = [0.0, 0.0, 1.0], [0.5, 0.4, 0.7], [1.3, 0.5, 2.5]


def f64(x: object) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def plain(
    reward: np.ndarray,
    value: np.ndarray,
    ratio: np.ndarray,
    mask: np.ndarray,
    *,
    boot: float = 0.0,
    gamma: float = 1.0,
    lam: float = 0.95,
    low: float = 1.0,
    high: float = 1.0,
    own: str = "exclude",
    c_bar: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(A, R) of one row, position by position from the end; observations pass value and trace on unchanged."""
    A, R = np.zeros(len(reward)), np.zeros(len(reward))
    ahead_V, ahead_G = boot, 0.0
    for t in reversed(range(len(reward))):
        if not mask[t]:
            continue
        delta = reward[t] + gamma * ahead_V - value[t]
        c = 1.0 if c_bar is None else min(c_bar, ratio[t])
        G = min(max(ratio[t], low), high) * delta + gamma * lam * c * ahead_G
        A[t] = G if own == "include" else delta + gamma * lam * ahead_G
        R[t] = value[t] + G
        ahead_V, ahead_G = value[t], G
    return A, R


class Rows:
    """Random padded rows with observations, and the same as flat columns."""

    def __init__(self, seed: int, rows: int = 7, width: int = 13) -> None:
        rng = np.random.default_rng(seed)
        self.length = rng.integers(0, width + 1, rows)
        self.mask = (rng.random((rows, width)) < 0.7) & (np.arange(width) < self.length[:, None])
        self.reward, self.value = rng.normal(size=(rows, width)), rng.normal(size=(rows, width))
        self.log_ratio, self.boot = rng.normal(size=(rows, width)), rng.normal(size=rows)

    def flat(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(x[self.mask])

    @property
    def length_R(self) -> Tensor:
        return torch.from_numpy(self.mask.sum(1))

    def columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.flat(self.reward), self.flat(self.value), self.flat(self.log_ratio), self.length_R

    def plain(self, **options: object) -> tuple[np.ndarray, np.ndarray]:
        found = [
            plain(r, v, np.exp(s), m, boot=b, **options)  # type: ignore[arg-type]
            for r, v, s, m, b in zip(self.reward, self.value, self.log_ratio, self.mask, self.boot, strict=True)
        ]
        return np.stack([a for a, _ in found])[self.mask], np.stack([r for _, r in found])[self.mask]


# ------------------------------------------------------------------------------------------------------------------ known examples


def test_gae_to_the_digits() -> None:
    found = F.traces.gae(f64(REWARD), f64(VALUE), torch.tensor([3]))
    np.testing.assert_allclose(found.advantage_N, [0.45575, 0.585, 0.3], rtol=1e-14)


@pytest.mark.parametrize(
    ("options", "advantage", "returns"),
    [
        ({}, [0.584, 0.87, 0.3], [1.054, 1.12, 1.3]),
        ({"own": "include"}, [0.554, 0.72, 0.6], [1.054, 1.12, 1.3]),
        ({"c_bar": 1.0}, [0.31325, 0.87, 0.3], [0.78325, 0.835, 1.3]),
    ],
)
def test_copc_to_the_digits(options: dict[str, object], advantage: list[float], returns: list[float]) -> None:
    found = F.traces.copc(f64(REWARD), f64(VALUE), f64(RATIO).log(), torch.tensor([3]), lam_critic=0.95, **options)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.advantage_N, advantage, rtol=1e-14)
    np.testing.assert_allclose(found.return_N, returns, rtol=1e-14)


# ------------------------------------------------------------------------------------------------------------------ against plain loops


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("gamma", [1.0, 0.97])
@pytest.mark.parametrize("own", ["exclude", "include"])
@pytest.mark.parametrize("c_bar", [None, 1.0, 1.2])
def test_copc_is_the_plain_recursion_twice(seed: int, gamma: float, own: str, c_bar: float | None) -> None:
    rows = Rows(seed)
    found = F.traces.copc(
        *rows.columns(),
        boot_R=torch.from_numpy(rows.boot),
        gamma=gamma,
        lam_actor=0.8,
        lam_critic=0.99,
        low=0.6,
        high=1.7,
        own=own,  # type: ignore[arg-type]
        c_bar=c_bar,
    )
    options = {"gamma": gamma, "low": 0.6, "high": 1.7, "own": own, "c_bar": c_bar}
    np.testing.assert_allclose(found.advantage_N, rows.plain(lam=0.8, **options)[0], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(found.return_N, rows.plain(lam=0.99, **options)[1], rtol=1e-12, atol=1e-13)
    full = rows.plain(lam=0.8, gamma=gamma, low=0.0, high=np.inf, own=own, c_bar=np.inf)[0]
    np.testing.assert_allclose(found.full_N, full, rtol=1e-11, atol=1e-12)


def test_gae_takes_one_lambda_a_rollout() -> None:
    rows = Rows(3)
    lam_R = F.traces.length_lambda(rows.length_R, 1.5)
    found = F.traces.gae(*rows.columns()[:2], rows.length_R, boot_R=torch.from_numpy(rows.boot), lam_actor=lam_R, lam_critic=lam_R)
    want = [
        plain(r, v, np.ones_like(r), m, boot=b, lam=max(0.0, 1 - 1 / (1.5 * max(m.sum(), 1))))
        for r, v, m, b in zip(rows.reward, rows.value, rows.mask, rows.boot, strict=True)
    ]
    np.testing.assert_allclose(found.advantage_N, np.stack([a for a, _ in want])[rows.mask], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(found.return_N, np.stack([r for _, r in want])[rows.mask], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("seed", range(4))
def test_vtrace_is_the_published_recursion(seed: int) -> None:
    rows, gamma, lam, rho_bar, c_bar = Rows(seed), 0.98, 0.9, 1.5, 0.8
    found = F.traces.vtrace(*rows.columns(), boot_R=torch.from_numpy(rows.boot), gamma=gamma, lam=lam, rho_bar=rho_bar, c_bar=c_bar)
    A, v = np.zeros_like(rows.value), np.zeros_like(rows.value)
    for i in range(len(rows.value)):
        ahead_V = ahead_v = rows.boot[i]
        for t in reversed(np.flatnonzero(rows.mask[i])):
            ratio, V = np.exp(rows.log_ratio[i, t]), rows.value[i, t]
            delta = rows.reward[i, t] + gamma * ahead_V - V
            v[i, t] = V + min(rho_bar, ratio) * delta + gamma * lam * min(c_bar, ratio) * (ahead_v - ahead_V)
            A[i, t] = rows.reward[i, t] + gamma * ahead_v - V
            ahead_V, ahead_v = V, v[i, t]
    np.testing.assert_allclose(found.return_N, v[rows.mask], rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(found.advantage_N, A[rows.mask], rtol=1e-11, atol=1e-12)


def test_vtrace_on_its_own_policy_is_the_return_itself() -> None:
    rows = Rows(1)
    reward_N, value_N, log_ratio_N, length_R = rows.columns()
    found = F.traces.vtrace(reward_N, value_N, torch.zeros_like(log_ratio_N), length_R)
    np.testing.assert_allclose(found.return_N, F.traces.gae(reward_N, value_N, length_R).return_N, rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------------------------------------------------------ properties


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    lam=st.floats(0, 1),
    gamma=st.floats(0.5, 1),
    scale=st.sampled_from([1.0, 30.0, 1e4]),
    own=st.sampled_from(["exclude", "include"]),
)
def test_weights_of_one_are_gae_to_the_bit(seed: int, lam: float, gamma: float, scale: float, own: str) -> None:
    rows = Rows(seed)
    reward_N, value_N, log_ratio_N, length_R = rows.columns()
    boot_R = torch.from_numpy(rows.boot)
    want = F.traces.gae(reward_N.float(), value_N.float(), length_R, boot_R=boot_R, gamma=gamma, lam_actor=lam)
    found = F.traces.copc(
        reward_N.float(),
        value_N.float(),
        scale * log_ratio_N,
        length_R,
        boot_R=boot_R,
        gamma=gamma,
        lam_actor=lam,
        low=1.0,
        high=1.0,
        own=own,
    )
    assert torch.equal(found.advantage_N, want.advantage_N)
    assert torch.equal(found.return_N, want.return_N)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_what_stands_at_observations_and_in_other_rollouts_changes_no_bit(seed: int) -> None:
    rows = Rows(seed)
    before = F.traces.copc(*rows.columns(), c_bar=1.3)
    rng = np.random.default_rng(seed + 1)
    for x in (rows.reward, rows.value, rows.log_ratio):
        x[~rows.mask] = rng.normal(size=int((~rows.mask).sum())) * 100
    after = F.traces.copc(*rows.columns(), c_bar=1.3)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    # Each rollout alone gives the bits it had among the others.
    for i in range(len(rows.mask)):
        alone = [torch.from_numpy(x[i][rows.mask[i]]) for x in (rows.reward, rows.value, rows.log_ratio)]
        found = F.traces.copc(*alone, torch.tensor([int(rows.mask[i].sum())]), c_bar=1.3)
        assert torch.equal(found.advantage_N, torch.from_numpy(_row(rows, before.advantage_N, i)))


def _row(rows: Rows, x_N: Tensor, i: int) -> np.ndarray:
    end = rows.mask.sum(1).cumsum()
    return np.asarray(x_N)[end[i] - rows.mask[i].sum() : end[i]]


@pytest.mark.parametrize("extreme", [1e4, -1e4, math.inf, -math.inf])
def test_ratios_beyond_the_exponential_are_clipped(extreme: float) -> None:
    log_ratio_N = torch.full((3,), extreme, dtype=torch.float64)
    found = F.traces.copc(f64(REWARD), f64(VALUE), log_ratio_N, torch.tensor([3]), low=0.5, high=2.0)
    assert set(found.kappa_N.tolist()) == {2.0 if extreme > 0 else 0.5}
    assert torch.isfinite(found.advantage_N).all()


def test_a_nan_stays_in_its_rollout_and_is_not_dropped() -> None:
    rows = Rows(5)
    reward_N, value_N, log_ratio_N, length_R = rows.columns()
    owner_N = torch.repeat_interleave(length_R)
    bad = int(torch.nonzero(owner_N == owner_N[-1])[-1])
    log_ratio_N[bad] = math.nan
    found = F.traces.copc(reward_N, value_N, log_ratio_N, length_R, own="include")
    assert found.advantage_N[owner_N == owner_N[-1]].isnan().all()
    assert found.advantage_N[owner_N != owner_N[-1]].isfinite().all()
    assert F.traces.whiten(found.advantage_N).isnan().all()  # the step is refused, not the token


def test_rollouts_without_tokens_and_batches_without_rollouts() -> None:
    empty = torch.zeros(0, dtype=torch.float64)
    assert F.traces.gae(empty, empty, torch.tensor([0, 0])).advantage_N.shape == (0,)
    assert F.traces.copc(empty, empty, empty, torch.zeros(0, dtype=torch.int64)).return_N.shape == (0,)
    one = F.traces.copc(f64([1.0]), f64([0.25]), f64([math.log(3.0)]), torch.tensor([0, 1, 0]))
    assert (one.advantage_N.tolist(), one.return_N.tolist()) == ([0.75], [1.75])


# ------------------------------------------------------------------------------------------------------------------ whitening, loss, ages


def test_whitening() -> None:
    x = np.random.default_rng(0).normal(3.0, 5.0, 40)
    want = (x - x.mean()) / np.sqrt(x.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(F.traces.whiten(torch.from_numpy(x)), want, rtol=1e-12)


@pytest.mark.parametrize(("x", "want"), [([], []), ([7.0], [7.0]), ([2.0, 2.0], [0.0, 0.0]), ([1.0, 1.0 + 1e-7], [-5e-8, 5e-8])])
def test_whitening_without_spread_only_centers_and_leaves_a_single_token(x: list[float], want: list[float]) -> None:
    np.testing.assert_allclose(F.traces.whiten(f64(x)), want, atol=1e-15)


def test_the_value_loss_and_its_pessimistic_clip() -> None:
    value_N = f64([0.0, 1.0, 3.0, 0.1]).requires_grad_()
    return_N, old_N = f64([1.0, 1.0, 1.0, 1.0]), f64([0.0, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(F.traces.value_loss(value_N, return_N, old_N).detach(), [0.5, 0.0, 2.0, 0.405])
    clipped_N = F.traces.value_loss(value_N, return_N, old_N, 0.5)
    # The second reached the target by leaving the range: it is charged as if it stood at the edge, and learns nothing from that.
    np.testing.assert_allclose(clipped_N.detach(), [0.5, 0.125, 2.0, 0.405])
    clipped_N.sum().backward()
    np.testing.assert_allclose(value_N.grad, [-1.0, 0.0, 2.0, -0.9])


def test_ages_are_counted_in_octaves() -> None:
    age_N = torch.tensor([0, 1, 2, 3, 4, 5, 8, 9, 16, 17, -1])
    found = F.buckets.sums_by_age([torch.arange(11)], age_N)
    assert found == {
        "": [11, 55],
        "0": [2, 10],
        "1": [1, 1],
        "2": [1, 2],
        "3-4": [2, 7],
        "5-8": [2, 11],
        "9-16": [2, 15],
        "17-32": [1, 9],
    }
    assert F.buckets.sums_by_age([torch.zeros(0)], torch.zeros(0, dtype=torch.int64)) == {"": [0, 0]}
