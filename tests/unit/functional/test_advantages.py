"""Advantages: golden values and degenerate groups."""

import math

import numpy as np
import pytest
import torch

from trimtab.functional.advantages import (
    b0,
    dr_grpo,
    group_mean,
    group_min,
    grpo,
    reinforce,
    reinforce_pp,
    reward_scale,
    reward_to_go,
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
    assert reinforce_pp(none).shape == group_min(none, group, 1).shape == (0,)


def test_group_min_pushes_nobody_down():
    group = torch.tensor([0, 1, 0, 1, 0])
    assert group_min(torch.tensor([1.0, -2.0, 3.0, 4.0, 1.5]), group, 2).tolist() == [0.0, 0.0, 2.0, 6.0, 0.5]


def test_reward_to_go_ends_with_its_rollout():
    r = torch.tensor([1.0, 0.0, 2.0, -1.0, 0.5])
    assert reward_to_go(r, torch.tensor([3, 0, 2])).tolist() == [3.0, 2.0, 2.0, -0.5, 0.5]


def test_reinforce_pp_whitens_over_all_tokens():
    returns = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 0.5])
    x = returns.double().numpy()
    np.testing.assert_allclose(reinforce_pp(returns), (x - x.mean()) / np.sqrt(x.var(ddof=1) + 1e-8), rtol=1e-13)


def test_reinforce_pp_of_equal_returns_is_exactly_no_signal():
    assert reinforce_pp(torch.full((7,), 0.1)).tolist() == [0.0] * 7
    assert reinforce_pp(torch.tensor([0.3])).tolist() == [0.0]
    assert torch.isnan(reinforce_pp(torch.tensor([0.3, math.nan]))).all()
