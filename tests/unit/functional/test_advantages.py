"""Advantages: golden values, degenerate groups, and the optimal baseline against NumPy."""

import math

import numpy as np
import pytest
import torch

from trimtab.functional.advantages import (
    b0,
    dr_grpo,
    group_mean,
    grpo,
    opob_log_weight,
    optimal_baseline,
    reinforce,
    reward_scale,
    rloo,
)

R = torch.tensor([1.0, 0, 0, 1, 1, 0, 0, 0])
ONE = torch.zeros(8, dtype=torch.int64)


@pytest.mark.parametrize(
    ("got", "reference", "high", "low"),
    [
        (grpo(R, ONE, 1), lambda r: (r - r.mean()) / (r.std(ddof=1) + 1e-6), "1.207612", "-0.724567"),
        (dr_grpo(R, ONE, 1), lambda r: r - r.mean(), "0.625000", "-0.375000"),
        (rloo(R, ONE, 1), lambda r: r - (r.sum() - r) / 7, "0.714286", "-0.428571"),
        (grpo(R, ONE, 1, "population"), lambda r: (r - r.mean()) / r.std(), "1.290994", "-0.774597"),
        (b0(R, ONE, 1), lambda r: r / (r.std(ddof=1) + 1e-6), "1.932180", "0.000000"),
        (reinforce(R, 0.25), lambda r: r - 0.25, "0.750000", "-0.250000"),
    ],
    ids=["grpo", "dr_grpo", "rloo", "population", "b0", "reinforce"],
)
def test_golden(got, reference, high, low):
    np.testing.assert_allclose(got, reference(R.double().numpy()), rtol=1e-13, atol=1e-16)
    assert [f"{x:.6f}" for x in got.tolist()] == [high if r else low for r in R.tolist()]


def test_groups_are_independent_and_may_be_interleaved():
    group = torch.tensor([1, 0, 1, 0, 1, 0])
    r = torch.tensor([1.0, 3.0, 0.0, 5.0, 0.5, 1.0])
    both = grpo(r, group, 2)
    for g in (0, 1):
        alone = grpo(r[group == g], torch.zeros(3, dtype=torch.int64), 1)
        assert torch.equal(both[group == g], alone)


def test_batch_scale_is_one_number_and_none_is_one():
    group = torch.tensor([0, 0, 1, 1])
    r = torch.tensor([1.0, 0.0, 3.0, 3.0])
    np.testing.assert_allclose(reward_scale(r, group, 2, "batch"), [1 / (np.std(r.numpy(), ddof=1) + 1e-6)] * 4, rtol=1e-6)
    assert reward_scale(r, group, 2, "none").tolist() == [1.0] * 4
    assert (grpo(r, group, 2, "batch") != 0).tolist() == [True, True, False, False]


@pytest.mark.parametrize("std", ["group", "population"])
def test_equal_rewards_give_exactly_no_signal(std):
    r = torch.full((7,), 0.1)  # 7 * 0.1 / 7 is not 0.1: the mean differs from R by rounding
    group = torch.zeros(7, dtype=torch.int64)
    assert reward_scale(r, group, 1, std).tolist() == [0.0] * 7
    assert (grpo(r, group, 1, std) == 0).all()
    assert (b0(r, group, 1, std) == 0).all()


@pytest.mark.parametrize("estimator", [grpo, rloo, dr_grpo, b0])
def test_a_group_of_one_has_no_signal(estimator):
    a = estimator(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0, 1, 1]), 2)
    assert a[0] == 0.0
    assert torch.isfinite(a).all()


@pytest.mark.parametrize("estimator", [grpo, rloo, dr_grpo, b0])
def test_a_nan_reward_is_seen_in_its_group_and_no_other(estimator):
    a = estimator(torch.tensor([math.nan, 1.0, 1.0, 0.0]), torch.tensor([0, 0, 1, 1]), 2)
    assert torch.isnan(a[0])
    assert torch.isfinite(a[2:]).all()


def test_empty_input():
    none, group = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    for a in (grpo(none, group, 0), rloo(none, group, 0), grpo(none, group, 0, "batch"), reinforce(none)):
        assert a.shape == (0,)
    assert group_mean(none, group, 2).tolist() == [0.0, 0.0]
    best = optimal_baseline(none, none, group, 1)
    assert (best.baseline_G.tolist(), best.share_G.tolist(), best.variance_ratio_G.tolist()) == ([0.0], [0.0], [1.0])


def test_optimal_baseline_and_its_diagnostics_against_numpy():
    rng = np.random.default_rng(5)
    group = rng.integers(0, 3, 40)
    r, log_w = rng.standard_normal(40), 3 * rng.standard_normal(40)
    got = optimal_baseline(torch.tensor(r), torch.tensor(log_w), torch.tensor(group), 3)
    for g in range(3):
        x, w = r[group == g], np.exp(log_w[group == g])
        b = (w * x).sum() / w.sum()
        assert float(got.baseline_G[g]) == pytest.approx(b, rel=1e-12)
        assert float(got.share_G[g]) == pytest.approx(w.max() / w.sum(), rel=1e-12)
        assert float(got.variance_ratio_G[g]) == pytest.approx((w * (x - b) ** 2).sum() / (w * (x - x.mean()) ** 2).sum(), rel=1e-12)


def test_equal_weights_give_the_group_mean_to_the_bit():
    for shift in (-1e4, 0.0, 1e4):
        best = optimal_baseline(R, torch.full((8,), shift), ONE, 1)
        assert torch.equal(best.baseline_G, group_mean(R, ONE, 1))
        assert best.share_G.tolist() == [1 / 8]


def test_a_dominating_rollout_is_its_own_baseline():
    for gap in (1e4, 1e300):
        log_w = torch.zeros(8, dtype=torch.float64)
        log_w[3] = gap
        r = torch.arange(8, dtype=torch.float64)
        best = optimal_baseline(r, log_w, ONE, 1)
        assert (best.baseline_G.tolist(), best.share_G.tolist(), best.variance_ratio_G.tolist()) == ([3.0], [1.0], [0.0])


def test_all_weights_zero_fall_back_to_the_mean_of_that_group_only():
    group = torch.tensor([0, 0, 1, 1])
    log_w = torch.tensor([-math.inf, -math.inf, -math.inf, 0.0])
    best = optimal_baseline(torch.tensor([1.0, 0.0, 1.0, 0.25]), log_w, group, 2)
    assert best.baseline_G.tolist() == [0.5, 0.25]
    assert best.share_G.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_weight_breaks_the_baseline_of_its_group_visibly(bad):
    best = optimal_baseline(torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0.0, bad, 0.0, 0.0]), torch.tensor([0, 0, 1, 1]), 2)
    assert torch.isnan(best.baseline_G[0])
    assert best.baseline_G[1] == 0.5


def test_the_three_weightings():
    w, c, norm2 = np.array([0.5, 20.0, 1.0]), 8.0, np.array([2.0, 3.0, 0.0])
    s, t = torch.tensor(w).log(), torch.tensor(np.minimum(w, c)).log()
    want = {"paper": w**2 * norm2, "repo": np.minimum(w, c) ** 2 * w**2 * norm2, "exact": norm2}
    for form, expected in want.items():
        np.testing.assert_allclose(opob_log_weight(form, s, t, torch.tensor(norm2)).exp(), expected, rtol=1e-12)


def test_a_huge_ratio_does_not_overflow_the_paper_weighting():
    log_w = opob_log_weight("paper", torch.tensor([1e3, 0.0]), torch.zeros(2), torch.tensor([1.0, 1.0]))
    best = optimal_baseline(torch.tensor([1.0, 0.0]), log_w, torch.zeros(2, dtype=torch.int64), 1)
    assert best.baseline_G.tolist() == [1.0]
