"""Reducers: any order of the observations gives the same bits, and the right ones."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.telemetry.reducers import ExactSum, Extreme, Mean, Rate, Reducer, Samples

REALS = st.floats(-1e200, 1e200, allow_nan=False)


@given(st.lists(st.tuples(REALS, REALS), max_size=40), st.randoms(use_true_random=False))
def test_a_rate_does_not_depend_on_the_order_of_what_it_is_made_of(observed, random):
    exact = Rate(*(float(sum((Fraction(pair[i]) for pair in observed), Fraction(0))) for i in (0, 1)))
    for _ in range(2):
        mean = Mean()
        for numerator, denominator in observed:
            mean.add(numerator, denominator)
        assert mean.value == exact
        random.shuffle(observed)


def test_a_rate_of_parts_is_not_the_mean_of_their_quotients():
    mean = Mean()
    assert mean.value.value is None  # nothing counted is not zero
    mean.add(1, 1)
    mean.add(0, 9)
    assert mean.value.value == 0.1


def test_sums_keep_what_plain_addition_loses():
    assert ExactSum([1e100, 1.0, -1e100]).value == 1.0
    assert ExactSum([0.1] * 10).value == 1.0


@pytest.mark.parametrize(("addends", "isfinite"), [([1.0, math.nan], False), ([math.inf, 1.0], False), ([1.0, 2.0], True)])
def test_a_nonfinite_addend_shows_in_the_sum(addends, isfinite):
    assert math.isfinite(ExactSum(addends).value) is isfinite


@given(st.lists(st.floats(allow_nan=True), max_size=25))
def test_extremes_never_overlook_nan(observed):
    for reducer, pick in ((Reducer.MAX, max), (Reducer.MIN, min)):
        extreme = Extreme(reducer)
        for x in observed:
            extreme.add(x)
        if not observed:
            assert extreme.value is None
        elif any(math.isnan(x) for x in observed):
            assert math.isnan(extreme.value)
        else:
            assert extreme.value == pick(observed)


def test_last_is_the_latest():
    last = Extreme(Reducer.LAST)
    for x in (3.0, 1.0, 2.0):
        last.add(x)
    assert last.value == 2.0


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=20), min_size=1, max_size=5), st.sampled_from([0.01, 0.5, 0.99, 1.0]))
def test_quantiles_are_those_of_all_observations_together(splits, q):
    samples = Samples()
    for split in splits:
        samples.add(split)
    flat = [x for split in splits for x in split]
    assert samples.quantile(q) == (np.quantile(np.array(flat), q) if flat else None)


def test_quantiles_of_overflowed_ratios_are_not_finite_rather_than_wrong():
    samples = Samples()
    samples.add([1.0, math.inf, math.inf])
    assert samples.quantile(0.01) == math.inf or samples.quantile(0.01) < 2
    assert not math.isfinite(samples.quantile(0.99))
