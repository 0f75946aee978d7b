"""Ratios and weights: golden numbers, masked positions, and NaN that is never dropped."""

import math

import numpy as np
import pytest
import torch

from trimtab.functional.ratios import EXP_BOUND, exp_clamped, log_ratio, masked, sequence_max, sequence_mean, sequence_sum
from trimtab.functional.weights import keep_within, mask, nan_of, second_moment_limit, token_weight, truncate

LR = torch.tensor([0.1, -0.2, 0.05])
ROLLOUT = torch.tensor([0, 0, 0])


def test_golden_sequence_and_geometric_ratio():
    sequence = sequence_sum(LR, ROLLOUT, 1).exp()
    geometric = sequence_mean(LR, ROLLOUT, 1).exp()
    ratios = np.exp([0.1, -0.2, 0.05])
    np.testing.assert_allclose(sequence, [np.prod(ratios)], rtol=1e-7)
    np.testing.assert_allclose(geometric, [np.prod(ratios) ** (1 / 3)], rtol=1e-7)
    assert f"{float(sequence):.6f} {float(geometric):.6f}" == "0.951229 0.983471"


def test_sums_go_to_the_right_rollout_and_a_rollout_without_tokens_is_zero():
    x = torch.tensor([1.0, 2.0, 4.0, 8.0])
    rollout = torch.tensor([2, 0, 2, 0])
    assert sequence_sum(x, rollout, 4).tolist() == [10.0, 0.0, 5.0, 0.0]
    assert sequence_mean(x, rollout, 4).tolist() == [5.0, 0.0, 2.5, 0.0]
    assert sequence_sum(x[:0], rollout[:0], 2).tolist() == [0.0, 0.0]


def test_long_sums_are_taken_in_float64():
    x = torch.full((200_000,), 1e-3)
    total = sequence_sum(x, torch.zeros(200_000, dtype=torch.int64), 1)
    assert total.dtype == torch.float64
    assert abs(float(total) - 200_000 * float(np.float32(1e-3))) < 1e-9


def test_masked_out_values_reach_neither_value_nor_gradient():
    keep = torch.tensor([True, False, False])
    target = torch.tensor([0.5, math.nan, -math.inf], requires_grad=True)
    d = log_ratio(target, torch.tensor([0.25, 0.0, -math.inf]), keep)
    assert d.tolist() == [0.25, 0.0, 0.0]
    d.exp().sum().backward()
    assert target.grad.tolist() == [pytest.approx(math.exp(0.25)), 0.0, 0.0]
    assert masked(target, None) is target


def test_exp_clamped_is_finite_for_everything_but_nan():
    x = torch.tensor([-math.inf, -1e4, -1.0, 0.0, 1e4, math.inf, math.nan])
    y = exp_clamped(x)
    np.testing.assert_allclose(y[:6], np.exp(np.clip(x[:6].numpy(), -EXP_BOUND, EXP_BOUND)), rtol=1e-6)
    assert torch.isnan(y[6])
    assert torch.isfinite((y[:6].square()).sum())


def test_truncation_bounds_only_from_above():
    w = torch.tensor([0.01, 1.0, 7.9, 8.0, 9.0, 1e30], dtype=torch.float64)
    np.testing.assert_allclose(truncate(w.log(), 8.0).exp(), np.minimum(w.numpy(), 8.0), rtol=1e-14)
    assert truncate(torch.tensor(1e4), 8.0).exp() == pytest.approx(8.0)
    assert torch.isnan(truncate(torch.tensor(math.nan), 8.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mask_keeps_the_band_with_its_bounds_and_drops_the_rest(dtype):
    w = [0.49, 0.5, 1.0, 5.0, 5.01, 1e30]
    m = mask(torch.tensor([math.log(x) for x in w], dtype=dtype), 0.5, 5.0)
    assert m.keep.tolist() == [0.5 <= x <= 5.0 for x in w]
    np.testing.assert_allclose(m.log_weight.exp() * m.keep, [x if 0.5 <= x <= 5.0 else 0.0 for x in w], rtol=1e-6)
    assert m.log_weight.dtype == dtype


def test_a_band_may_be_open_on_either_side():
    lr = torch.tensor([-math.inf, -1e4, 0.0, 1e4, math.inf])
    assert keep_within(lr, 0.0, 2.0).tolist() == [True, True, True, False, False]
    assert keep_within(lr, 0.5, math.inf).tolist() == [False, False, True, True, True]


def test_a_nan_ratio_is_kept_so_that_the_step_is_refused():
    m = mask(torch.tensor([math.nan, 1e4]), 0.5, 2.0)
    assert m.keep.tolist() == [True, False]
    assert torch.isnan(m.log_weight[0])
    assert m.log_weight[1] == 0.0


def test_token_weight_spreads_scales_and_zeroes_what_is_dropped():
    scale_R = torch.tensor([math.log(2.0), 0.0, 1e4], dtype=torch.float64)
    w = token_weight(scale_R, torch.tensor([0, 0, 1, 2]), torch.tensor([1.0, 3.0, math.nan, 1.0]), torch.tensor([True, True, False, False]))
    np.testing.assert_allclose(w, [2.0, 6.0, 0.0, 0.0], rtol=1e-15)
    np.testing.assert_allclose(token_weight(scale_R, torch.tensor([1, 0])), [1.0, 2.0], rtol=1e-15)


def test_strict_bounds_are_outside():
    lr = torch.tensor([0.5, 1.0, 2.0, math.nan]).log()
    assert keep_within(lr, 0.5, 2.0, strict=True).tolist() == [False, True, False, True]
    assert mask(lr, 0.5, 2.0, strict=True).keep.tolist() == [False, True, False, True]
    assert keep_within(torch.tensor([-math.inf, -1e4]), 0.0, 1.0, strict=True).tolist() == [False, True]


def test_the_largest_of_each_rollout():
    x = torch.tensor([1.0, -2.0, -5.0, math.nan, 9.0, -math.inf])
    top = sequence_max(x, torch.tensor([0, 0, 2, 3, 3, 4]), 6)
    assert top.dtype == torch.float64
    np.testing.assert_array_equal(top, [1.0, 0.0, -5.0, math.nan, -math.inf, 0.0])


def test_a_statistic_leaves_only_its_nan():
    np.testing.assert_array_equal(nan_of(torch.tensor([1.0, math.inf, math.nan, -1e4])), [0.0, 0.0, math.nan, 0.0])


def test_second_moment_limit_golden():
    d2 = torch.tensor([0.05, -0.1, 0.3, -0.02, 0.6, 0.0]).square()
    assert second_moment_limit(d2, 0.04) == pytest.approx(0.09)  # drops only .6: the mean of the rest is .02058
    assert second_moment_limit(d2, 0.0772) == math.inf  # the mean of all is .07715
    assert second_moment_limit(torch.tensor([math.nan, 1.0, 4.0]), 2.0) == 1.0
