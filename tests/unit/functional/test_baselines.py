"""Weighted baselines against NumPy, group by group: optimal, its variants and diagnostics, and the token baseline."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.functional.advantages import group_mean
from trimtab.functional.baselines import (
    against_mean,
    leave_one_out,
    logit_energy,
    opob_log_weight,
    optimal_baseline,
    token_baseline,
)

R = torch.tensor([1.0, 0, 0, 1, 1, 0, 0, 0])
ONE = torch.zeros(8, dtype=torch.int64)


@pytest.fixture
def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rewards, log-weights, groups) of 40 rollouts in 3 interleaved groups."""
    rng = np.random.default_rng(5)
    group = rng.integers(0, 3, 40)
    return rng.standard_normal(40), 3 * rng.standard_normal(40), group


def tensors(*arrays: np.ndarray) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(a) for a in arrays)


# ------------------------------------------------------------------------------------------------------------------ optimal baseline


def test_optimal_baseline_against_numpy(drawn):
    r, log_w, group = drawn
    got = optimal_baseline(*tensors(*drawn), 3)
    for g in range(3):
        x, w = r[group == g], np.exp(log_w[group == g])
        assert float(got.baseline_G[g]) == pytest.approx((w * x).sum() / w.sum(), rel=1e-12)
        assert float(got.share_G[g]) == pytest.approx(w.max() / w.sum(), rel=1e-12)


def test_equal_weights_give_the_group_mean_to_the_bit():
    for shift in (-1e4, 0.0, 1e4):
        best = optimal_baseline(R, torch.full((8,), shift), ONE, 1)
        assert torch.equal(best.baseline_G, group_mean(R, ONE, 1))
        assert best.share_G.tolist() == [1 / 8]


def test_a_dominating_rollout_is_its_own_baseline():
    for gap in (1e4, 1e300):
        log_w = torch.zeros(8, dtype=torch.float64)
        log_w[3] = gap
        best = optimal_baseline(torch.arange(8, dtype=torch.float64), log_w, ONE, 1)
        assert (best.baseline_G.tolist(), best.share_G.tolist()) == ([3.0], [1.0])


@pytest.mark.parametrize("aggregation", ["mean", "median", "winsorized"])
def test_all_weights_zero_count_as_equal_in_that_group_only(aggregation):
    group = torch.tensor([0, 0, 0, 1, 1])
    log_w = torch.tensor([-math.inf, -math.inf, -math.inf, -math.inf, 0.0])
    best = optimal_baseline(torch.tensor([1.0, 0.0, 0.5, 1.0, 0.25]), log_w, group, 2, aggregation)
    assert best.baseline_G.tolist() == [0.5, 0.25]
    assert best.share_G.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("aggregation", ["mean", "median", "winsorized"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_weight_breaks_the_baseline_of_its_group_visibly(bad, aggregation):
    r, log_w, group = torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([0.0, bad, 0.0, 0.0]), torch.tensor([0, 0, 1, 1])
    best = optimal_baseline(r, log_w, group, 2, aggregation)
    assert torch.isnan(best.baseline_G[0])
    assert best.baseline_G[1] == 1.0
    loo = leave_one_out(r, log_w, group, 2)
    assert torch.isnan(loo[0])
    assert loo[2:].tolist() == [1.0, 1.0]


def test_empty_input():
    none, group = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    for aggregation in ("mean", "median", "winsorized"):
        best = optimal_baseline(none, none, group, 1, aggregation)
        assert (best.baseline_G.tolist(), best.share_G.tolist()) == ([0.0], [0.0])
    assert leave_one_out(none, none, group, 1).shape == (0,)
    assert token_baseline(none, none, group, group, 0).shape == (0,)
    c = against_mean(none, none, none, none, group, 2)
    assert (c.mixed_G.tolist(), c.variance_ratio_G.tolist(), c.change_G.tolist()) == ([False] * 2, [1.0] * 2, [0.0] * 2)


def released_quantile(values: np.ndarray, weights: np.ndarray, q: float) -> float:
    """As the released code walks: the first value, in ascending order, at which the cumulated weight reaches q of the total."""
    reached = 0.0
    pairs = sorted(zip(values, weights, strict=True))
    for value, weight in pairs:
        reached += weight
        if reached >= q * weights.sum():
            return float(value)
    return float(pairs[-1][0])


def test_median_and_winsorized_mean_are_the_released_ones(drawn):
    r, log_w, group = drawn
    median = optimal_baseline(*tensors(*drawn), 3, "median").baseline_G
    winsorized = optimal_baseline(*tensors(*drawn), 3, "winsorized").baseline_G
    for g in range(3):
        x, w = r[group == g], np.exp(log_w[group == g])
        assert float(median[g]) == released_quantile(x, w, 0.5)
        clipped = np.clip(x, released_quantile(x, w, 0.05), released_quantile(x, w, 0.95))
        assert float(winsorized[g]) == pytest.approx(np.average(clipped, weights=w), rel=1e-12)


def test_an_outlier_of_small_weight_is_clipped_by_the_winsorized_mean():
    r = torch.tensor([0.0] * 50 + [1.0] * 49 + [1000.0])
    one = torch.zeros(100, dtype=torch.int64)
    assert float(optimal_baseline(r, torch.zeros(100), one, 1, "winsorized").baseline_G) == pytest.approx(0.5)
    assert float(optimal_baseline(r, torch.zeros(100), one, 1).baseline_G) == pytest.approx(10.49)


def test_leave_one_out_is_the_mean_of_the_others(drawn):
    r, log_w, group = drawn
    got = leave_one_out(*tensors(*drawn), 3).numpy()
    w = np.exp(log_w)
    for i in range(len(r)):
        others = (group == group[i]) & (np.arange(len(r)) != i)
        assert got[i] == pytest.approx(np.average(r[others], weights=w[others]), rel=1e-10)


def test_leave_one_out_sees_the_others_beside_any_outlier():
    """Total minus the outlier would leave nothing of the others' weights."""
    log_w = torch.tensor([200.0, math.log(3.0), 0.0, -math.inf])
    got = leave_one_out(torch.tensor([5.0, 1.0, 0.0, 7.0]), log_w, torch.zeros(4, dtype=torch.int64), 1)
    assert got.tolist() == pytest.approx([0.75, 5.0, 5.0, 5.0])
    alone = leave_one_out(torch.tensor([0.5, 1.0, 0.0]), torch.zeros(3), torch.tensor([0, 1, 1]), 2)
    assert alone.tolist() == [0.5, 0.0, 1.0]
    zeros = leave_one_out(torch.tensor([3.0, 1.0, 0.0]), torch.full((3,), -math.inf), torch.zeros(3, dtype=torch.int64), 1)
    assert zeros.tolist() == [0.5, 1.5, 2.0]


sizes = st.lists(st.tuples(st.floats(-5, 5), st.floats(-300, 300)), min_size=2, max_size=8)


@given(sizes, st.floats(-1e3, 1e3))
@settings(max_examples=60, deadline=None)
def test_in_sample_advantage_is_the_others_damped_by_the_share(members, shift):
    """R - b = (1 - p)(R - b of the others), p the rollout's share of the weights; the scale of the weights does not matter."""
    r, log_w = (torch.tensor(x, dtype=torch.float64) for x in zip(*members, strict=True))
    one = torch.zeros(len(r), dtype=torch.int64)
    b = optimal_baseline(r, log_w + shift, one, 1).baseline_G[0]
    others = leave_one_out(r, log_w, one, 1)
    p = torch.softmax(log_w, 0)
    torch.testing.assert_close(r - b, (1 - p) * (r - others), rtol=1e-6, atol=1e-9)


@given(sizes, st.sampled_from(["median", "winsorized"]), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_order_scale_and_other_groups_do_not_matter(members, aggregation, seed):
    r, log_w = (torch.tensor(x, dtype=torch.float64) for x in zip(*members, strict=True))
    n = len(r)
    alone = optimal_baseline(r, log_w, torch.zeros(n, dtype=torch.int64), 1, aggregation).baseline_G
    order = torch.randperm(2 * n, generator=torch.Generator().manual_seed(seed))
    group = torch.arange(2 * n) // n
    both = optimal_baseline(torch.cat([r, 3 - r])[order], torch.cat([log_w, -log_w])[order], group[order], 2, aggregation).baseline_G
    torch.testing.assert_close(both[:1], alone, rtol=1e-9, atol=1e-9)
    assert r.min() - 1e-9 <= alone[0] <= r.max() + 1e-9


# ------------------------------------------------------------------------------------------------------------------------ diagnostics


def test_comparison_with_the_mean_against_numpy(drawn):
    r, log_w, group = drawn
    log_c = np.random.default_rng(1).standard_normal(40)
    b = 0.3 * np.random.default_rng(2).standard_normal(40)
    got = against_mean(*tensors(r, b, log_w, log_c, group), 3)
    assert got.mixed_G.all()
    for g in range(3):
        x, w, c, base = r[group == g], np.exp(log_w[group == g]), np.exp(log_c[group == g]), b[group == g]
        off = x - x.mean()
        assert float(got.baseline_G[g]) == pytest.approx(base.mean(), rel=1e-12)
        assert float(got.mean_G[g]) == pytest.approx(x.mean(), rel=1e-12)
        assert float(got.variance_ratio_G[g]) == pytest.approx((w * (x - base) ** 2).sum() / (w * off**2).sum(), rel=1e-12)
        assert float(got.change_G[g]) == pytest.approx(np.sqrt((c * (base - x.mean()) ** 2).sum() / (c * off**2).sum()), rel=1e-12)


def test_the_change_is_that_of_the_gradient_where_contributions_are_orthogonal():
    rng = np.random.default_rng(3)
    g = np.diag(rng.random(6) + 0.5)  # rollout i moves parameter i alone
    r, b = rng.random(6), 0.8
    with_mean, with_b = (r - r.mean()) @ g, (r - b) @ g
    got = against_mean(*tensors(r, np.full(6, b), np.zeros(6), np.log((g**2).sum(1))), torch.zeros(6, dtype=torch.int64), 1)
    assert float(got.change_G) == pytest.approx(np.linalg.norm(with_b - with_mean) / np.linalg.norm(with_mean))


def test_the_mean_itself_changes_nothing_and_equal_rewards_are_not_mixed():
    r = torch.tensor([0.1, 0.1, 0.1, 1.0, 0.0])
    group = torch.tensor([0, 0, 0, 1, 1])
    got = against_mean(r, group_mean(r, group, 2)[group], torch.zeros(5), torch.zeros(5), group, 2)
    assert got.mixed_G.tolist() == [False, True]
    assert got.change_G.tolist() == [0.0, 0.0]
    assert got.variance_ratio_G.tolist() == [1.0, 1.0]


# -------------------------------------------------------------------------------------------------------------------------- weightings


def test_the_three_weightings():
    w, c, norm2 = np.array([0.5, 20.0, 1.0]), 8.0, np.array([2.0, 3.0, 0.0])
    s, t = torch.tensor(w).log(), torch.tensor(np.minimum(w, c)).log()
    want = {"paper": w**2 * norm2, "repo": np.minimum(w, c) ** 2 * w**2 * norm2, "exact": np.minimum(w, c) ** 2 * norm2}
    for form, expected in want.items():
        np.testing.assert_allclose(opob_log_weight(form, s, t, torch.tensor(norm2)).exp(), expected, rtol=1e-12)


def test_a_huge_ratio_does_not_overflow_the_paper_weighting():
    log_w = opob_log_weight("paper", torch.tensor([1e3, 0.0]), torch.zeros(2), torch.tensor([1.0, 1.0]))
    best = optimal_baseline(torch.tensor([1.0, 0.0]), log_w, torch.zeros(2, dtype=torch.int64), 1)
    assert best.baseline_G.tolist() == [1.0]


# ---------------------------------------------------------------------------------------------------------------------- token baseline


def test_logit_energy_is_the_squared_norm_of_the_logit_gradient():
    z = torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64, requires_grad=True)
    logp = torch.log_softmax(z, 0)
    (gradient,) = torch.autograd.grad(logp[1], z)
    got = logit_energy(logp[1].detach(), logp.detach().exp().square().sum())
    assert float(got) == pytest.approx(float(gradient.square().sum()), rel=1e-12)
    assert float(logit_energy(torch.tensor(0.0), torch.tensor(1.0 - 1e-7))) == 0.0  # rounding below 0


def test_token_baseline_golden():
    """Two rollouts: energies (1, 1) and (3, 1), returns (1, 1) and (0, 0): B = 1/4 at the first token, 2/6 at the second."""
    got = token_baseline(
        torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 3.0, 1.0]), torch.tensor([2, 2]), torch.tensor([0, 0]), 1
    )
    assert got.tolist() == pytest.approx([1 / 4, 1 / 3, 1 / 4, 1 / 3])


@pytest.mark.parametrize("zero_tail", [False, True])
def test_token_baseline_against_numpy(zero_tail):
    rng = np.random.default_rng(0)
    lengths, groups = [3, 5, 0, 2, 6, 6, 1], [0, 0, 0, 1, 1, 1, 2]
    g, v = rng.standard_normal(sum(lengths)), rng.random(sum(lengths))
    got = token_baseline(*tensors(g, v, np.array(lengths), np.array(groups)), 3, zero_tail=zero_tail)
    ends = np.cumsum(lengths)
    rows = [(g[e - n : e], np.cumsum(v[e - n : e])) for n, e in zip(lengths, ends, strict=True)]
    want = []
    for i, n in enumerate(lengths):
        for t in range(n):
            there = [rows[j] for j in range(len(rows)) if groups[j] == groups[i] and lengths[j] > t]
            alone = rows[i][0][t] if not zero_tail else 0.0
            weights = [energy[t] for _, energy in there]
            want.append(alone if len(there) == 1 else np.average([ret[t] for ret, _ in there], weights=weights))
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_token_baseline_edges():
    lengths, group = torch.tensor([2, 2]), torch.tensor([0, 0])
    equal = torch.full((4,), 0.1)
    assert torch.equal(token_baseline(equal, torch.rand(4), lengths, group, 1), equal.double())  # exactly no signal
    certain = token_baseline(torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.zeros(4), lengths, group, 1)
    assert certain.tolist() == [0.5] * 4
    broken = token_baseline(equal, torch.tensor([1.0, math.nan, 1.0, 1.0]), lengths, group, 1)
    assert broken.isnan().tolist() == [False, True, False, True]
