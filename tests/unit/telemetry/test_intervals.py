"""Intervals: against published values and NumPy, and against what they promise, on simulated evaluations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.telemetry.intervals import Estimate, change, of_prompts, student_quantile, wilson

T_TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 19: 2.093, 30: 2.042, 120: 1.980, 5000: 1.960}


@pytest.mark.parametrize(("df", "t"), T_TABLE.items())
def test_students_quantile_is_that_of_the_tables(df: int, t: float) -> None:
    assert student_quantile(df) == pytest.approx(t, abs=6e-4)


@pytest.mark.parametrize(
    ("correct", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718), (20, 20, 0.8389, 1.0)],
)
def test_wilson_has_the_values_that_newcombe_published(correct: int, n: int, low: float, high: float) -> None:
    """Newcombe 1998, table I, method 3 (the last by symmetry)."""
    found = of_prompts([1.0] * correct + [0.0] * (n - correct), n, binary=True)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_scores_have_students_interval_over_prompts() -> None:
    x = np.random.default_rng(0).uniform(0, 0.9, 40)
    found = of_prompts(x.tolist(), 160, binary=False)
    half = 2.0226909 * x.std(ddof=1) / math.sqrt(40)
    assert (found.mean, found.low, found.high) == pytest.approx((x.mean(), x.mean() - half, x.mean() + half), rel=1e-6)


def test_one_prompt_has_no_interval_and_huge_scores_no_overflow() -> None:
    assert of_prompts([0.3], 4, binary=False) == Estimate(0.3)
    huge = of_prompts([1e308, 1e308, 9e307], 3, binary=False)
    assert huge.mean == pytest.approx(2.9e308 / 3 if math.isfinite(2.9e308) else 9.6667e307, rel=1e-3)


def test_samples_of_one_prompt_do_not_make_the_interval_narrower_than_they_are_worth() -> None:
    rng = np.random.default_rng(1)
    same = rng.random(64) < 0.6  # the prompt decides: its 8 samples agree
    alike = of_prompts(same.astype(float).tolist(), 64 * 8, binary=True)
    assert alike == of_prompts(same.astype(float).tolist(), 64, binary=True)
    own = rng.binomial(8, 0.6, 64) / 8  # the prompt decides nothing
    free = of_prompts(own.tolist(), 64 * 8, binary=True)
    assert free.high is not None
    assert free.low is not None
    plain = wilson(float(own.mean()), 64 * 8)
    assert plain.high is not None
    assert plain.low is not None
    assert free.high - free.low == pytest.approx(plain.high - plain.low, rel=0.25)


@pytest.mark.parametrize(("spread", "samples"), [(0.0, 1), (0.0, 4), (0.3, 4), (0.45, 8)])
def test_intervals_hold_the_truth_about_as_often_as_they_say(spread: float, samples: int) -> None:
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(600):
        chance = np.clip(0.5 + spread * rng.choice([-1, 1], 48), 0, 1)
        found = of_prompts((rng.binomial(samples, chance) / samples).tolist(), 48 * samples, binary=True)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.5 <= found.high
    assert 0.92 <= hits / 600 <= 0.985


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=30))
def test_a_share_lies_in_its_interval_and_the_interval_in_the_unit(means: list[float]) -> None:
    found = of_prompts(means, 4 * len(means), binary=True)
    assert found.low is not None
    assert found.high is not None
    assert 0.0 <= found.low <= found.mean <= found.high <= 1.0
    assert found.low < found.high


def test_a_rise_within_the_noise_is_none() -> None:
    """Newcombe 1998b, table II, method 10: 56/70 against 48/80, and 9/10 against 3/10."""
    a, b = wilson(48 / 80, 80), wilson(56 / 70, 70)
    assert a.high is not None
    assert b.low is not None
    assert b.mean - a.mean - math.hypot(b.mean - b.low, a.high - a.mean) == pytest.approx(0.0524, abs=1e-4)
    assert change(a, b) == "rose"
    assert change(b, a) == "fell"
    assert change(wilson(0.5, 64), wilson(0.52, 64)) == "noise"
    assert change(wilson(0.5, 64), wilson(0.5, 64)) == "noise"
    assert change(Estimate(0.1), wilson(0.9, 64)) == "unknown"
