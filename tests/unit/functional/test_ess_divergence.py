"""Effective sample size and KL estimators: the worked numbers of the specification, recomputed in NumPy."""

import math

import numpy as np
import pytest
import torch

from trimtab.functional.divergence import k1, k2, k3
from trimtab.functional.ess import Ess, ess, ess_multiplier


def log(*w):
    return torch.tensor(w, dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("weights", "cap", "ratio"),
    [
        ((1, 1, 1, 5), None, "0.5714"),
        ((4, 1, 1), None, "0.6667"),
        ((1, 0.5, 2, 20), None, "0.3407"),
        ((1, 0.5, 2, 20), 8.0, "0.4774"),
        ((2, 1, 0.5, 0.1), None, "0.6160"),
    ],
)
def test_golden_ratios(weights, cap, ratio):
    got = ess(log(*weights), cap)
    w = np.minimum(np.array(weights, float), np.inf if cap is None else cap)
    assert got.value == pytest.approx(w.sum() ** 2 / (w * w).sum(), rel=1e-13)
    assert got.ratio == pytest.approx(got.value / len(w), rel=1e-15)
    assert f"{got.ratio:.4f}" == ratio
    assert got.finite


def test_golden_multipliers():
    assert f"{ess(log(2, 1, 0.5, 0.1)).value:.4f}" == "2.4639"
    ratio = ess(log(1, 1, 1, 5)).ratio
    assert ess_multiplier(ratio) == pytest.approx(math.sqrt(64 / 112), rel=1e-14)
    assert f"{ess_multiplier(ratio):.3f}" == "0.756"
    assert ess_multiplier(ratio, rule="linear") == pytest.approx(64 / 112)
    assert ess_multiplier(0.2, reference=0.55) == pytest.approx(math.sqrt(0.2 / 0.55))
    assert ess_multiplier(0.7, reference=0.55) == 1.0
    assert ess_multiplier(0.01, floor=0.25) == 0.25


def test_equal_weights_have_ratio_one_at_any_scale():
    for shift in (-1e3, math.log(1e-6), 0.0, 88.8, 1e3):
        assert ess(torch.full((4,), shift, dtype=torch.float64)) == Ess(4.0, 1.0, True)


def test_one_dominating_weight():
    s = torch.zeros(512, dtype=torch.float64)
    s[7] = 1e3
    assert ess(s) == Ess(1.0, 1 / 512, True)
    assert ess_multiplier(ess(s).ratio) == pytest.approx(1 / math.sqrt(512), rel=1e-14)
    assert ess_multiplier(ess(s).ratio, reference=0.5) == pytest.approx(1 / math.sqrt(512 * 0.5), rel=1e-14)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_ratio_is_flagged_and_cannot_become_a_multiplier(bad):
    got = ess(torch.tensor([0.0, bad, 0.0]))
    assert not got.finite
    assert math.isnan(got.ratio)
    with pytest.raises(ValueError, match="not finite"):
        ess_multiplier(got.ratio)


def test_minus_infinity_is_a_weight_of_zero_but_flagged():
    assert ess(log(2, 2, 0)) == Ess(2.0, 2 / 3, False)
    assert ess(log(0, 0)) == Ess(0.0, 0.0, False)
    assert ess(torch.zeros(0)) == Ess(0.0, 0.0, True)


def test_a_reference_of_zero_is_refused():
    with pytest.raises(ValueError, match="reference"):
        ess_multiplier(0.5, reference=0.0)


def test_golden_k3():
    d = torch.tensor([0.1, -0.2, 0.05])
    got = float(k3(d).mean())
    x = d.double().numpy()
    assert got == pytest.approx(float(np.mean(np.exp(x) - 1 - x)), rel=1e-5)
    assert f"{got:.6f}" == "0.008391"
    np.testing.assert_allclose(k1(d), -x)
    np.testing.assert_allclose(k2(d), x * x / 2, rtol=1e-6)


def test_all_three_estimate_kl_from_mu_to_pi():
    """Sign convention: averaged over samples of mu, each estimates KL(mu || pi) for nearby policies; k1 and k3 without bias."""
    rng = np.random.default_rng(0)
    mu = rng.dirichlet(np.ones(8) * 5)
    pi = mu * np.exp(0.05 * rng.standard_normal(8))
    pi /= pi.sum()
    d = torch.tensor(np.log(pi) - np.log(mu))
    kl = float((mu * np.log(mu / pi)).sum())
    expected = [float((torch.tensor(mu) * k(d)).sum()) for k in (k1, k2, k3)]
    assert expected[0] == pytest.approx(kl, rel=1e-9)
    assert expected[1] == pytest.approx(kl, rel=0.1)
    assert expected[2] == pytest.approx(kl, rel=1e-9)


def test_k3_of_a_collapsed_token_is_finite_and_of_a_tiny_ratio_not_rounded_away():
    assert torch.isfinite(k3(torch.tensor([1e4, -1e4]))).all()
    d = torch.tensor([1e-6], dtype=torch.float64)
    assert float(k3(d)) == pytest.approx(5e-13, rel=1e-3)
