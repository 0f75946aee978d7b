"""The second-moment mask: golden values, the whole update, and the split into micro-batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.updates import gradient_of, make_batch, tiny_model, worst
from support.views import make_view, notes
from trimtab.control.protocol import View
from trimtab.control.registry import build
from trimtab.functional.weights import second_moment_limit
from trimtab.methods.m2po_mask import M2POMask

GOLDEN = [0.05, -0.1, 0.3, -0.02, 0.6, 0.0]
untimed = settings(deadline=None, max_examples=100)


def make(**options: Any) -> M2POMask:
    method = build("m2po_mask", options)
    assert isinstance(method, M2POMask)
    return method


def view(d: list[float]) -> View:
    """log mu - log pi_proximal = ``d``, over two rollouts."""
    half = len(d) // 2
    v = make_view([1, 0], [0, 0], [half, len(d) - half])
    v.proximal_N = v.behavior_N - torch.tensor(d, dtype=torch.float64)
    return v


def kept(method: M2POMask, v: View) -> list[bool]:
    method.survey(v, None)
    w_N = v.weights(method.weigh(v))
    assert ((w_N == 0) | (w_N == 1) | w_N.isnan()).all()
    return (w_N != 0).tolist()


def one_by_one(d2: list[float], budget: float) -> list[bool]:
    """Drop the largest, one at a time, while the mean of the rest is not below the budget; at least one stays. No ties."""
    left = sorted(range(len(d2)), key=lambda i: d2[i])
    while len(left) > 1 and not sum(d2[i] for i in left) / len(left) < budget:
        left.pop()
    return [i in left for i in range(len(d2))]


def test_golden() -> None:
    d2 = np.square(GOLDEN)
    assert d2.mean() == pytest.approx(0.07715, abs=1e-9)
    v = view(GOLDEN)
    assert kept(make(), v) == [True, True, True, True, False, True]
    assert np.delete(d2, 4).mean() == pytest.approx(0.02058, abs=1e-9)
    assert notes(v).metrics == {"m2po_mask/masked": (1, 6)}


def test_the_budget_is_strict_and_within_it_nothing_is_masked() -> None:
    assert second_moment_limit(torch.tensor([0.5, 0.25]), 0.375) == 0.25
    assert second_moment_limit(torch.tensor([0.5, 0.25]), 0.376) == math.inf
    assert second_moment_limit(torch.zeros(0), 0.04) == math.inf
    assert second_moment_limit(torch.zeros(3), 0.04) == math.inf


def test_where_nothing_is_within_the_budget_the_smallest_stays() -> None:
    assert kept(make(), view([1.0, -0.5, 2.0, 3.0])) == [False, True, False, False]
    assert kept(make(), view([0.5, -0.5, 2.0, 3.0])) == [True, True, False, False]  # equal tokens are treated alike


@untimed
@given(st.lists(st.floats(-2, 2).filter(lambda x: abs(x) > 1e-6), min_size=2, max_size=12, unique_by=lambda x: round(x * x, 9)))
def test_it_is_the_published_procedure(d: list[float]) -> None:
    d2 = [x * x for x in d]
    limit = second_moment_limit(torch.tensor(d2, dtype=torch.float64), 0.04)
    assert [x <= limit for x in d2] == one_by_one(d2, 0.04)


@untimed
@given(st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=12), st.floats(0.001, 1.0), st.randoms(use_true_random=False))
def test_bounds_and_order(d: list[float], budget: float, random: Any) -> None:
    d2 = torch.tensor(d, dtype=torch.float64).square()
    limit = second_moment_limit(d2, budget)
    stay = d2 <= limit
    assert bool(stay.any())
    assert float(d2[stay].mean()) < budget or limit == float(d2.min())
    order = list(range(len(d)))
    random.shuffle(order)
    assert second_moment_limit(d2[order], budget) == limit


def test_a_nan_stays_and_does_not_move_the_others() -> None:
    v = view([*GOLDEN, math.nan, 0.0])
    method = make()
    method.survey(v, None)
    w = v.weights(method.weigh(v))
    assert math.isnan(w[6])
    assert w[:6].tolist() == [1, 1, 1, 1, 0, 1]


def test_extremes_are_dropped() -> None:
    assert kept(make(), view([1e4, -1e4, 0.1, 0.0])) == [False, False, True, True]
    assert kept(make(), view([math.inf, -math.inf, 0.1, 0.0])) == [False, False, True, True]


def test_it_needs_the_whole_update() -> None:
    with pytest.raises(RuntimeError, match="survey"):
        make().weigh(view(GOLDEN))


@pytest.mark.parametrize("anchor", ["recompute", "a3po"])
def test_the_mask_does_not_depend_on_the_split(anchor: str) -> None:
    model = tiny_model()
    batch = make_batch(model, spread=0.4)
    methods = [{"name": "decoupled", "anchor": anchor}, {"name": "m2po_mask", "anchor": anchor}]
    one = gradient_of(model, methods, batch)
    assert worst(gradient_of(model, methods, batch, micro_tokens=40), one) < 1e-10
    assert worst(gradient_of(model, methods[:1], batch), one) > 1e-3, "the mask acts"
