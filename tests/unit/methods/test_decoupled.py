"""The behavior weight of decoupled PPO and its rejection, against NumPy; the interpolated proximal policy."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.views import make_view, notes, setting
from trimtab.control.chain import Chain
from trimtab.control.protocol import Need, View
from trimtab.control.registry import MethodEntry, build
from trimtab.methods.decoupled import Decoupled
from trimtab.records import TrimtabError

LENGTHS = [3, 1, 7, 4, 5, 2]


def view(lr: np.ndarray | None = None, *, spread: float = 1.5, seed: int = 0) -> View:
    """A view whose proximal/behavior log-ratios are ``lr``."""
    v = make_view([1, 0, 0, 1, 1, 0], [0, 0, 1, 1, 2, 2], LENGTHS)
    lr = spread * np.random.default_rng(seed).normal(size=sum(LENGTHS)) if lr is None else lr
    v.proximal_N = v.behavior_N + torch.from_numpy(lr)
    return v


def make(**options: Any) -> Decoupled:
    method = build("decoupled", options)
    assert isinstance(method, Decoupled)
    return method


def by_hand(lr: np.ndarray, *, action: str, level: str, metric: str, aggregate: str, upper: float, lower: float | None) -> np.ndarray:
    """AReaL's rules, one rollout at a time."""
    low = -math.inf if lower is None else lower
    statistic = {"ratio": lr, "k1": lr, "k2": lr**2 / 2, "k3": np.exp(-lr) - 1 + lr}[metric]
    weight = np.exp(lr)
    if level == "sequence":
        statistic = {"mean": np.mean, "sum": np.sum, "max": np.max}[aggregate](statistic) + 0 * lr
        if metric == "ratio":
            weight = np.exp(np.mean(lr)) + 0 * lr
    value = np.exp(statistic) if metric == "ratio" else statistic
    outside = (value > upper) | (value < low)
    return np.where(outside, 0.0 if action == "mask" else np.clip(weight, max(low, 0.0), upper), weight)


CHOICES = [
    (action, level, metric, aggregate)
    for action, level, metric, aggregate in itertools.product(
        ("mask", "clamp"), ("token", "sequence"), ("ratio", "k1", "k2", "k3"), ("mean", "sum", "max")
    )
    if not (action == "clamp" and metric != "ratio") and not (level == "token" and aggregate != "mean")
]


@pytest.mark.parametrize("bounds", [(1.3, None), (1.3, 0.8)])
@pytest.mark.parametrize(("action", "level", "metric", "aggregate"), CHOICES)
def test_every_rule_of_the_rejection(action: str, level: str, metric: str, aggregate: str, bounds: tuple[float, float | None]) -> None:
    options = {"action": action, "level": level, "metric": metric, "aggregate": aggregate, "upper": bounds[0], "lower": bounds[1]}
    v = view()
    assert v.proximal_N is not None
    lr_N = (v.proximal_N - v.behavior_N).numpy()
    want = np.concatenate([by_hand(part, **options) for part in np.split(lr_N, np.cumsum(LENGTHS)[:-1])])  # type: ignore[arg-type]
    np.testing.assert_allclose(v.weights(make(**options).weigh(v)), want, rtol=1e-10)


def test_default_masks_tokens_beyond_five_and_counts_them() -> None:
    lr = np.zeros(sum(LENGTHS))
    lr[:4] = np.log([4.999, 5.001, 0.001, 60.0])
    v = view(lr)
    np.testing.assert_allclose(v.weights(make().weigh(v))[:5], [4.999, 0.0, 0.001, 0.0, 1.0], rtol=1e-9)
    assert notes(v).metrics == {"decoupled/masked": (2, sum(LENGTHS))}


def test_without_rejection_the_weight_is_the_ratio() -> None:
    v = view()
    assert v.proximal_N is not None
    torch.testing.assert_close(v.weights(make(action="none").weigh(v)), (v.proximal_N - v.behavior_N).exp())
    assert notes(v).metrics == {}


def test_the_current_policy_does_not_enter_when_the_proximal_one_is_computed() -> None:
    v = view()
    w = v.weights(make().weigh(v))
    v.current_N = None
    torch.testing.assert_close(v.weights(make().weigh(v)), w)


def test_what_must_be_computed() -> None:
    assert make().needs == Need.PROXIMAL
    assert make(anchor="a3po").needs == Need.NOTHING


def test_weights_never_carry_a_gradient() -> None:
    for anchor in ("recompute", "a3po"):
        v = view()
        v.current_N = v.current.clone().requires_grad_()
        assert not v.weights(make(anchor=anchor).weigh(v)).requires_grad


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("action", ["mask", "clamp", "none"])
@pytest.mark.parametrize("metric", ["ratio", "k1", "k2", "k3"])
def test_extremes_are_finite_and_a_nan_stays(level: str, action: str, metric: str) -> None:
    if action == "clamp" and metric != "ratio":
        return
    lr = np.zeros(sum(LENGTHS))
    lr[:6] = [1e4, -1e4, 0.0, 1e4, -1e4, 3.0]
    lr[8] = math.nan
    for aggregate in ("mean", "sum", "max"):
        v = view(lr)
        w = v.weights(make(level=level, action=action, metric=metric, aggregate=aggregate).weigh(v))
        assert math.isnan(w[8])
        assert torch.isfinite(w[:4]).all()
        assert torch.isfinite(w[11:]).all()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-1e4, 1e4), min_size=sum(LENGTHS), max_size=sum(LENGTHS)), st.sampled_from(["token", "sequence"]))
def test_masked_or_clamped_weights_lie_in_the_bounds(lr: list[float], level: str) -> None:
    for action in ("mask", "clamp"):
        v = view(np.array(lr))
        w = v.weights(make(level=level, action=action, lower=0.5).weigh(v))
        assert ((w == 0.0) | ((w >= 0.5 * (1 - 1e-12)) & (w <= 5.0 * (1 + 1e-12)))).all()
        assert action == "mask" or (w > 0).all()


# ------------------------------------------------------------------------------------------------------------------------------ a3po


def test_interpolation_by_version() -> None:
    v = view()
    v.age_N = torch.tensor(([5, 1, 0, 2] * 6)[: sum(LENGTHS)])
    s_N = (v.current - v.behavior_N).numpy()
    a_N = np.array(([0.8, 0.0, 1.0, 0.5] * 6)[: sum(LENGTHS)])  # current version 9, token of version 4: a = .8
    np.testing.assert_allclose(v.weights(make(anchor="a3po", action="none").weigh(v)), np.exp(a_N * s_N), rtol=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 200), st.floats(-5, 5))
def test_the_interpolated_policy_lies_between_behavior_and_current(age: int, lr: float) -> None:
    v = view()
    v.age_N = torch.full_like(v.age_N, age)
    v.current_N = v.behavior_N + lr
    w = v.weights(make(anchor="a3po", action="none").weigh(v))
    low, high = min(1.0, math.exp(lr)), max(1.0, math.exp(lr))
    assert ((w >= low * (1 - 1e-12)) & (w <= high * (1 + 1e-12))).all()


def test_weight_and_clip_multiply_to_the_whole_ratio_under_either_anchor() -> None:
    """w u = pi_current / mu where nothing is clipped, whichever proximal policy lies between."""
    for anchor in ("recompute", "a3po"):
        v = view(spread=0.01)
        v.age_N = torch.full_like(v.age_N, 3)
        chain = Chain.resolve(
            [MethodEntry(name="decoupled", anchor=anchor, action="none"), MethodEntry(name="ppo_decoupled", anchor=anchor)], setting()
        )
        v.current_N = v.behavior_N + 0.02
        loss_N = chain.learner().objective(v, chain.learner().weigh(v), torch.ones_like(v.behavior_N))
        torch.testing.assert_close(loss_N, -torch.full_like(loss_N, math.exp(0.02)), rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("other", ["ppo_decoupled", "m2po_mask"])
def test_two_proximal_policies_are_refused(other: str) -> None:
    with pytest.raises(TrimtabError, match="anchor"):
        Chain.resolve([MethodEntry(name="decoupled", anchor="a3po"), MethodEntry(name=other)], setting())
    Chain.resolve([MethodEntry(name="decoupled", anchor="a3po"), MethodEntry(name=other, anchor="a3po")], setting())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lower": 5.0}, "lower = 5.0 must be below upper = 5.0"),
        ({"upper": 0.0}, "a ratio is positive"),
        ({"lower": -1.0}, "a ratio is positive"),
        ({"action": "clamp", "metric": "k2"}, "cannot be clamped to bounds on k2"),
    ],
)
def test_rules_that_mean_nothing_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TrimtabError, match=words):
        make(**options)


def test_it_does_not_stand_beside_a_weight_for_the_same_staleness() -> None:
    with pytest.raises(TrimtabError, match="same staleness"):
        Chain.resolve([MethodEntry(name="decoupled"), MethodEntry(name="seq_tis")], setting())
