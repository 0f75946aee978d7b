"""Reducers: any split of the observations gives the same bits, and the right ones."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.telemetry.reducers import ExactSum, Extreme, Mean, Rate, Reducer, Samples

REALS = st.floats(-1e200, 1e200, allow_nan=False)
SPLITS = st.lists(st.lists(st.tuples(REALS, REALS), max_size=8), max_size=6)


def tree_merge(parts, new):
    """Merge accumulators pairwise, as ranks and processes would, not one after the other."""
    parts = parts or [new()]
    while len(parts) > 1:
        for left, right in zip(parts[::2], parts[1::2], strict=False):
            left.merge(right)
        parts = parts[::2]
    return parts[0]


@given(SPLITS)
def test_a_rate_does_not_depend_on_how_the_batch_was_split(splits):
    parts = []
    for split in splits:
        mean = Mean()
        for numerator, denominator in split:
            mean.add(numerator, denominator)
        parts.append(mean)
    observed = [pair for split in splits for pair in split]
    exact = Rate(*(float(sum((Fraction(pair[i]) for pair in observed), Fraction(0))) for i in (0, 1)))
    assert tree_merge(parts, Mean).value == exact


def test_a_rate_of_parts_is_not_the_mean_of_their_quotients():
    a, b = Mean(), Mean()
    a.add(1, 1)
    b.add(0, 9)
    a.merge(b)
    assert a.value.value == 0.1
    assert Mean().value.value is None  # nothing counted is not zero


def test_sums_keep_what_plain_addition_loses():
    assert ExactSum([1e100, 1.0, -1e100]).value == 1.0
    assert ExactSum([0.1] * 10).value == 1.0


@pytest.mark.parametrize(("addends", "isfinite"), [([1.0, math.nan], False), ([math.inf, 1.0], False), ([1.0, 2.0], True)])
def test_a_nonfinite_addend_shows_in_the_sum(addends, isfinite):
    whole, part = ExactSum(addends[:1]), ExactSum(addends[1:])
    whole.merge(part)
    assert math.isfinite(whole.value) is isfinite


@given(st.lists(st.lists(st.floats(allow_nan=True), max_size=5), max_size=5))
def test_extremes_of_parts_are_the_extremes_of_the_whole_and_never_overlook_nan(splits):
    flat = [x for split in splits for x in split]
    for reducer, pick in ((Reducer.MAX, max), (Reducer.MIN, min)):
        parts = []
        for split in splits:
            extreme = Extreme(reducer)
            for x in split:
                extreme.add(x)
            parts.append(extreme)
        value = tree_merge(parts, lambda reducer=reducer: Extreme(reducer)).value
        if not flat:
            assert value is None
        elif any(math.isnan(x) for x in flat):
            assert math.isnan(value)
        else:
            assert value == pick(flat)


def test_last_is_the_latest():
    last = Extreme(Reducer.LAST)
    for x in (3.0, 1.0, 2.0):
        last.add(x)
    assert last.value == 2.0


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=20), min_size=1, max_size=5), st.sampled_from([0.01, 0.5, 0.99, 1.0]))
def test_quantiles_are_those_of_all_observations_together(splits, q):
    parts = []
    for split in splits:
        samples = Samples()
        samples.add(split)
        parts.append(samples)
    flat = [x for split in splits for x in split]
    quantile = tree_merge(parts, Samples).quantile(q)
    assert quantile == (np.quantile(np.array(flat), q) if flat else None)


def test_quantiles_of_overflowed_ratios_are_not_finite_rather_than_wrong():
    samples = Samples()
    samples.add([1.0, math.inf, math.inf])
    assert samples.quantile(0.01) == math.inf or samples.quantile(0.01) < 2
    assert not math.isfinite(samples.quantile(0.99))
