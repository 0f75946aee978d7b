"""Clip ranges from the data against NumPy, golden values, and their edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.functional.clipping import bapo_range, binary_kl, m2po_range, off_policy_sequences, within_binary_kl, within_tv

GOLDEN = np.sqrt([0.0025, 0.01, 0.09, 0.16, 0.36])


def doubles(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_golden_m2po_thresholds() -> None:
    d, a = torch.from_numpy(GOLDEN), torch.ones(5)
    code, exact = m2po_range(d, a), m2po_range(d, a, solve="exact")
    assert code.statistic == pytest.approx(0.1245, rel=1e-12)
    assert (code.low, code.high) == (pytest.approx(math.exp(-0.1)), pytest.approx(math.exp(0.1)))
    assert f"{exact.low:.6f} {exact.high:.6f}" == "0.778801 1.284025"
    assert exact.high == pytest.approx(math.exp(0.25), rel=1e-12)


def test_only_harmful_tokens_count_for_m2po() -> None:
    d = torch.from_numpy(np.concatenate([GOLDEN, -GOLDEN, [5.0, -5.0, 5.0, -5.0]]))
    a = doubles([1.0] * 5 + [-1.0] * 5 + [-1.0, 1.0, 0.0, 1e-13])
    want = m2po_range(torch.from_numpy(np.repeat(GOLDEN, 2)), torch.ones(10), solve="exact")
    got = m2po_range(d, a, solve="exact")
    assert got == pytest.approx(want, rel=1e-12)
    assert m2po_range(d[10:], a[10:]) == (0.0, math.inf, 0.0)


def test_within_the_budget_m2po_does_not_clip_and_over_it_at_once_it_clips_everything() -> None:
    assert m2po_range(doubles([0.2, 0.2]), torch.ones(2)) == (0.0, math.inf, pytest.approx(0.04))
    assert m2po_range(doubles([0.3, 0.4]), torch.ones(2))[:2] == (1.0, 1.0)  # code: no token's value fits
    assert m2po_range(doubles([0.3, 0.4]), torch.ones(2), solve="exact").high == pytest.approx(math.exp(0.2))
    assert m2po_range(doubles([]), doubles([])) == (0.0, math.inf, 0.0)
    assert m2po_range(doubles([0.1, math.inf]), torch.ones(2), solve="exact").high == pytest.approx(math.exp(math.sqrt(0.07)))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=20), st.floats(1e-3, 10.0))
def test_the_exact_threshold_spends_the_budget_and_the_codes_stays_within_it(sizes: list[float], budget: float) -> None:
    d = np.array(sizes)
    exact, code = (m2po_range(torch.from_numpy(d), torch.ones(len(d)), budget=budget, solve=s) for s in ("exact", "code"))  # type: ignore[arg-type]
    if exact.high == math.inf:
        assert np.mean(d**2) <= budget * (1 + 1e-9)
        return
    moment = lambda r: np.mean(np.minimum(d**2, math.log(r.high) ** 2))  # noqa: E731
    assert moment(exact) == pytest.approx(budget, rel=1e-6)
    assert moment(code) <= budget * (1 + 1e-9)
    assert code.high <= exact.high * (1 + 1e-12)


def bapo_by_hand(mu: np.ndarray, r: np.ndarray, a: np.ndarray, share: float, form: str) -> tuple[float, float]:
    """The published loop, over all tokens, with a counter per bound."""
    i = j = 0
    while True:
        low, high = 0.6 + 0.02 * i, 1.2 + 0.05 * j
        surrogate = mu * np.minimum(r * a, np.where(a > 0, np.clip(r, 0, high), np.clip(r, low, high)) * a)
        good, bad = surrogate[a > 0].sum(), surrogate[a < 0].sum()
        got = abs(good) / (abs(good + bad) if form == "net" else abs(good) + abs(bad))
        if got >= share or i == 15:
            return low, high
        if j < 36:
            j += 1
        else:
            i += 1


@pytest.mark.parametrize("form", ["net", "parts"])
@pytest.mark.parametrize("seed", range(12))
def test_bapo_finds_the_published_loops_bounds(form: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    behavior, d = -rng.random(40) * 3, rng.normal(size=40) * (0.3 + 0.1 * seed)
    a = rng.normal(size=40) - 0.15 * seed
    got = bapo_range(*(torch.from_numpy(x) for x in (behavior, d, a)), form=form)  # type: ignore[arg-type]
    want = bapo_by_hand(np.exp(behavior), np.exp(d), a, 0.4, form)
    assert got[:2] == pytest.approx(want, rel=1e-9)


def test_bapo_ends_at_its_bounds_and_stops_at_once_where_nothing_is_bad() -> None:
    bad, good = doubles([-1.0, -1.0]), doubles([1.0, 0.0])
    x = doubles([-1.0, -0.5])
    assert bapo_range(x, x, bad) == (pytest.approx(0.9), pytest.approx(3.0), 0.0)
    assert bapo_range(x, x, good)[:2] == (0.6, 1.2)
    assert bapo_range(x, x, doubles([0.0, 0.0])) == (0.6, 1.2, math.inf)
    assert bapo_range(doubles([]), doubles([]), doubles([]))[:2] == (0.6, 1.2)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(-1e4, 0), st.floats(-1e4, 1e4), st.floats(-5, 5)), max_size=12), st.sampled_from(["net", "parts"]))
def test_bapo_always_ends_within_its_bounds(tokens: list[tuple[float, float, float]], form: str) -> None:
    columns = [doubles([t[i] for t in tokens]) for i in range(3)]
    got = bapo_range(*columns, form=form)  # type: ignore[arg-type]
    assert 0.6 <= got.low <= 0.9 + 1e-9
    assert 1.2 <= got.high <= 3.0 + 1e-9


def test_binary_kl() -> None:
    p, q = np.array([0.5, 0.9, 1e-6, 0.3]), np.array([0.25, 0.99, 1e-3, 0.3])
    want = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    np.testing.assert_allclose(binary_kl(torch.from_numpy(np.log(p)), torch.from_numpy(np.log(q))), want, rtol=1e-9, atol=1e-15)


def test_binary_kl_at_the_ends() -> None:
    zero, one, half = -math.inf, 0.0, math.log(0.5)
    p = doubles([zero, zero, one, one, half, half, -1e4, one, math.nan])
    q = doubles([zero, half, one, half, zero, one, one, -1e4, half])
    want = [0.0, math.log(2), 0.0, math.log(2), math.inf, math.inf, math.inf, 1e4, math.nan]
    np.testing.assert_allclose(binary_kl(p, q), want, rtol=1e-12)


@pytest.mark.parametrize("within", [within_tv, within_binary_kl])
def test_a_trust_region_stops_only_what_goes_further_out(within) -> None:  # type: ignore[no-untyped-def]
    old = torch.tensor([0.4, 0.4, 0.4, 0.4, 0.4, 0.4]).log()
    new = torch.tensor([0.9, 0.9, 0.05, 0.05, 0.41, 0.05]).log()
    a = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 0.0])
    assert within(new, old, a, 0.05, 0.05).tolist() == [False, True, True, False, True, False]
    assert within(new, old, a, 10.0, 10.0).all()
    assert within(torch.tensor([math.nan]), torch.tensor([-1.0]), torch.tensor([1.0]), 0.05, 0.05).all()


def test_bad_rollouts_that_the_policy_has_left() -> None:
    rollout = torch.tensor([0, 0, 1, 1, 2, 2, 3])
    d = doubles([-0.4, -0.8, -0.4, -0.8, 0.4, 0.8, math.nan])
    a = doubles([-1.0, -1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    assert off_policy_sequences(d, a, rollout, 4, 0.5).tolist() == [True, True, False, False, False, False, False]
    assert not off_policy_sequences(d, a, rollout, 4, 0.7).any()
