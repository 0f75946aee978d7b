"""ESS, truncation and the optimal baseline: properties over weights of any scale."""

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trimtab.functional.advantages import group_mean
from trimtab.functional.baselines import against_mean, optimal_baseline
from trimtab.functional.ess import ess, ess_multiplier
from trimtab.functional.ratios import exp_clamped
from trimtab.functional.weights import mask, truncate

# The first call of a torch operation can take longer than any fair deadline on a busy machine.
untimed = settings(deadline=None)
wild = st.floats(-1e4, 1e4, width=64)
mild = st.floats(-30, 30, width=64)


def column(elements, min_size=1, max_size=40):
    return st.lists(elements, min_size=min_size, max_size=max_size).map(lambda x: torch.tensor(x, dtype=torch.float64))


@untimed
@given(column(wild))
def test_ess_lies_between_one_and_the_batch(s):
    got = ess(s)
    assert 1.0 <= got.value <= len(s)
    assert 1.0 / len(s) <= got.ratio <= 1.0
    assert got.finite
    assert 1.0 / math.sqrt(len(s)) * (1 - 1e-12) <= ess_multiplier(got.ratio) <= 1.0


@untimed
@given(column(mild), st.floats(-1e3, 1e3))
def test_ess_does_not_see_the_scale_of_the_weights(s, shift):
    # The shift itself rounds log-weights by up to 1e-13, and that is all that may show.
    assert abs(ess(s + shift).ratio - ess(s).ratio) <= 1e-11


@untimed
@given(column(wild), st.randoms())
def test_ess_does_not_see_the_order(s, random):
    order = list(range(len(s)))
    random.shuffle(order)
    assert abs(ess(s[order]).value - ess(s).value) <= 1e-12 * len(s)


@untimed
@given(column(mild))
def test_ess_equals_its_definition(s):
    w = np.exp(s.numpy())
    np.testing.assert_allclose(ess(s).value, w.sum() ** 2 / (w * w).sum(), rtol=1e-11)


@untimed
@given(column(st.floats(-5, 5), min_size=2), st.floats(60, 1e4), st.floats(0.05, 1.0))
def test_one_dominating_weight_leaves_a_sample_of_one(s, gap, reference):
    s = torch.cat([s, torch.tensor([gap], dtype=torch.float64)])
    assert ess(s).value == 1.0
    expected = min(1.0, 1 / math.sqrt(len(s) * reference))
    assert math.isclose(ess_multiplier(ess(s).ratio, reference=reference), expected, rel_tol=1e-12)


@untimed
@given(column(st.floats(-1e4, 19.0)), st.floats(1e-3, 1e3))
def test_clipping_commutes_with_exp(s, cap):
    torch.testing.assert_close(truncate(s, cap).exp(), exp_clamped(s, 1e5).clamp(max=cap), rtol=1e-12, atol=0.0)
    assert ess(s, cap) == ess(truncate(s, cap))


@untimed
@given(column(wild), st.floats(0.01, 1.0), st.floats(1.0, 100.0))
def test_a_masked_weight_is_zero_or_inside_its_band(s, low, high):
    m = mask(s, low, high)
    w = m.log_weight.exp()
    assert bool(torch.isfinite(w).all())
    assert bool((w[m.keep] >= low * (1 - 1e-12)).all())
    assert bool((w[m.keep] <= high * (1 + 1e-12)).all())
    assert bool((m.keep == ((s >= math.log(low)) & (s <= math.log(high)))).all())


rewards_and_weights = st.integers(2, 12).flatmap(
    lambda n: st.tuples(
        hnp.arrays(np.float64, n, elements=st.floats(-2, 2)),
        hnp.arrays(np.float64, n, elements=st.floats(-20, 20)),
        st.floats(-1e4, 1e4),
    )
)


@untimed
@given(rewards_and_weights)
def test_the_optimal_baseline_is_the_argmin(case):
    r, log_w, shift = case
    group = torch.zeros(len(r), dtype=torch.int64)
    got = optimal_baseline(torch.tensor(r), torch.tensor(log_w + shift), group, 1)
    b, w = float(got.baseline_G), np.exp(log_w - log_w.max())

    def energy(x):
        return float((w * (r - x) ** 2).sum())

    for step in (1e-3, 0.1, 1.0):
        assert energy(b) <= min(energy(b - step), energy(b + step)) + 1e-9
    assert r.min() - 1e-9 <= b <= r.max() + 1e-9
    log_W, x = torch.tensor(log_w + shift), torch.tensor(r)
    compared = against_mean(x, got.baseline_G[group], log_W, log_W, group, 1)
    assert 0.0 <= float(compared.variance_ratio_G) <= 1.0 + 1e-9
    assert 1.0 / len(r) - 1e-12 <= float(got.share_G) <= 1.0


@untimed
@given(rewards_and_weights)
def test_equal_weights_of_any_size_give_the_group_mean(case):
    r, _, shift = case
    x, group = torch.tensor(r), torch.zeros(len(r), dtype=torch.int64)
    assert torch.equal(optimal_baseline(x, torch.full_like(x, shift), group, 1).baseline_G, group_mean(x, group, 1))


@untimed
@given(rewards_and_weights, st.floats(1e3, 1e4), st.data())
def test_a_dominating_rollout_is_the_baseline(case, gap, data):
    r, log_w, shift = case
    k = data.draw(st.integers(0, len(r) - 1))
    log_w = np.where(np.arange(len(r)) == k, log_w + gap, log_w) + shift
    got = optimal_baseline(torch.tensor(r), torch.tensor(log_w), torch.zeros(len(r), dtype=torch.int64), 1)
    assert float(got.baseline_G) == r[k]
    assert float(got.share_G) == 1.0


@untimed
@given(st.integers(1, 5), st.integers(1, 30), st.integers(0, 2**31))
def test_the_baseline_of_a_group_does_not_see_other_groups_or_order(groups, n, seed):
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, n)
    r, log_w = rng.standard_normal(n), 1e3 * rng.standard_normal(n)
    whole = optimal_baseline(torch.tensor(r), torch.tensor(log_w), torch.tensor(group), groups)
    order = rng.permutation(n)
    shuffled = optimal_baseline(torch.tensor(r[order]), torch.tensor(log_w[order]), torch.tensor(group[order]), groups)
    torch.testing.assert_close(whole.baseline_G, shuffled.baseline_G, rtol=1e-12, atol=1e-12)
    for g in set(group.tolist()):
        mine = group == g
        zeros = torch.zeros(int(mine.sum()), dtype=torch.int64)
        alone = optimal_baseline(torch.tensor(r[mine]), torch.tensor(log_w[mine]), zeros, 1)
        torch.testing.assert_close(whole.baseline_G[g], alone.baseline_G[0], rtol=1e-12, atol=1e-12)
