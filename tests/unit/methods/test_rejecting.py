"""Weights and masks by the ratio to the current policy: golden values, NumPy beside them, and what no rule may do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.views import make_view, notes, setting
from trimtab.control.chain import Chain
from trimtab.control.protocol import Method, View
from trimtab.control.registry import MethodEntry, build
from trimtab.records import TrimtabError

LENGTHS = [3, 1, 7, 4, 5, 2]
GOLDEN = [0.1, -0.2, 0.05]
untimed = settings(deadline=None, max_examples=25)

# name, options, and the weight of each token by NumPy: lr = token log-ratios of one rollout
CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("geo_tis", {}, lambda lr: np.minimum(np.exp(np.mean(lr)), 8.0) + 0 * lr),
    ("geo_tis", {"c": 2.0}, lambda lr: np.minimum(np.prod(np.exp(lr / len(lr))), 2.0) + 0 * lr),
    ("geo_mis", {}, lambda lr: float(0.999 <= np.exp(np.mean(lr)) <= 1.001) + 0 * lr),
    ("geo_mis", {"low": 0.9, "high": 1.1}, lambda lr: float(0.9 <= np.exp(np.mean(lr)) <= 1.1) + 0 * lr),
    ("icepop", {}, lambda lr: np.where((np.exp(lr) >= 0.5) & (np.exp(lr) <= 5.0), np.exp(lr), 0.0)),
    ("dis", {}, lambda lr: np.where((np.exp(lr) > 0.7) & (np.exp(lr) < 6.0), np.exp(lr), 0.0)),
    ("dis", {"low": 1.0, "high": 1.0}, lambda lr: np.where(np.exp(lr) < 2.0, np.exp(lr), 0.0)),
    ("token_veto", {}, lambda lr: float(np.exp(lr).min() >= 1e-4) + 0 * lr),
    ("token_veto", {"threshold": 0.3}, lambda lr: float(np.exp(lr).min() >= 0.3) + 0 * lr),
    ("k3_reject", {}, lambda lr: float(np.mean(np.exp(lr) - 1 - lr) <= 0.01) + 0 * lr),
    ("k3_reject", {"limit": 0.5}, lambda lr: float(np.mean(np.exp(lr) - 1 - lr) <= 0.5) + 0 * lr),
    ("seq_tis", {"c": 2.0}, lambda lr: np.minimum(np.exp(np.sum(lr)), 2.0) + 0 * lr),
    ("seq_tis", {"c": 8.0}, lambda lr: np.minimum(np.exp(np.sum(lr)), 8.0) + 0 * lr),
    ("tok_tis", {"c": 2.0}, lambda lr: np.minimum(np.exp(lr), 2.0)),
    ("tok_tis", {"c": 8.0}, lambda lr: np.minimum(np.exp(lr), 8.0)),
    ("seq_mis", {"high": 2.0}, lambda lr: np.where(np.exp(np.sum(lr)) <= 2.0, np.exp(np.sum(lr)), 0.0) + 0 * lr),
    ("tok_mis", {"high": 2.0}, lambda lr: np.where(np.exp(lr) <= 2.0, np.exp(lr), 0.0)),
]
METHODS = [(name, options) for name, options, _ in CASES]
# the largest weight each can give
TOP = {"geo_tis": "c", "seq_tis": "c", "tok_tis": "c", "seq_mis": "high", "tok_mis": "high", "icepop": "high"}


def view_of(log_ratios: Sequence[Sequence[float]]) -> View:
    """One rollout each, in pairs."""
    lengths = [len(lr) for lr in log_ratios]
    v = make_view([float(i % 2) for i in range(len(lengths))], [i // 2 for i in range(len(lengths))], lengths)
    v.current_N = v.behavior_N + torch.tensor([x for lr in log_ratios for x in lr], dtype=torch.float64)
    return v


def weights(method: Method, v: View) -> np.ndarray:
    return np.asarray(v.weights(method.weigh(v)))  # type: ignore[attr-defined]


@pytest.mark.parametrize("spread", [0.0005, 0.1, 1.5])
@pytest.mark.parametrize(("name", "options", "by_hand"), CASES)
def test_the_weight_of_every_token(name: str, options: dict[str, Any], by_hand: Any, spread: float) -> None:
    v = make_view([1, 0, 0, 1, 1, 0], [0, 0, 1, 1, 2, 2], LENGTHS, spread=spread)
    lr_N = (v.current - v.behavior_N).numpy()
    want = np.concatenate([by_hand(part) for part in np.split(lr_N, np.cumsum(LENGTHS)[:-1])])
    np.testing.assert_allclose(weights(build(name, options), v), want, rtol=1e-10, atol=1e-12)


def test_golden_rollout() -> None:
    v = view_of([GOLDEN, GOLDEN])
    assert weights(build("seq_tis", {}), v)[0] == pytest.approx(0.951229, abs=5e-7)
    assert weights(build("geo_tis", {}), v)[0] == pytest.approx(0.983471, abs=5e-7)
    assert weights(build("geo_mis", {}), v)[0] == 0.0  # .983471 < .999
    assert weights(build("geo_mis", {"low": 0.98, "high": 1.02}), v)[0] == 1.0
    assert weights(build("k3_reject", {}), v)[0] == 1.0  # mean k3 .008391 <= .01
    assert weights(build("k3_reject", {"limit": 0.0083915}), v)[0] == 1.0
    assert weights(build("k3_reject", {"limit": 0.0083905}), v)[0] == 0.0


def test_published_defaults() -> None:
    defaults = {name: build(name, {}).options.model_dump() for name in ("geo_mis", "icepop", "dis", "token_veto", "k3_reject")}
    assert defaults == {
        "geo_mis": {"low": 0.999, "high": 1.001},
        "icepop": {"low": 0.5, "high": 5.0},
        "dis": {"low": 0.3, "high": 5.0},
        "token_veto": {"threshold": 1e-4},
        "k3_reject": {"limit": 0.01},
    }


def test_the_bounds_of_icepop_are_kept_and_those_of_dis_are_not() -> None:
    ratios = [0.5, 0.7, 5.0, 6.0]
    v = view_of([ratios, ratios])
    v.behavior_N, v.current_N = torch.zeros(8), torch.tensor(ratios * 2, dtype=torch.float64).log()
    np.testing.assert_allclose(weights(build("icepop", {}), v)[:4], [0.5, 0.7, 5.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(weights(build("dis", {}), v)[:4], [0.0, 0.0, 5.0, 0.0], rtol=1e-6)


# ------------------------------------------------------------------------------------------------------------- what no rule may do


@st.composite
def rollouts(draw: st.DrawFn) -> list[list[float]]:
    value = st.floats(-3, 3) | st.sampled_from([0.0, 1e-4, 30.0, -30.0, 1e4, -1e4])
    return [draw(st.lists(value, min_size=1, max_size=5)) for _ in range(2)]


@pytest.mark.parametrize(("name", "options"), METHODS)
def test_weights_are_finite_not_negative_and_within_the_cap(name: str, options: dict[str, Any]) -> None:
    method = build(name, options)
    cap = getattr(method.options, TOP[name]) if name in TOP else 1.0 + getattr(method.options, "high", 0.0) if name == "dis" else 1.0

    @untimed
    @given(rollouts())
    def check(log_ratios: list[list[float]]) -> None:
        w = weights(method, view_of(log_ratios))
        assert np.isfinite(w).all()
        assert (w >= 0).all()
        assert (w <= cap * (1 + 1e-12)).all()

    check()


@pytest.mark.parametrize(("name", "options"), METHODS)
def test_weights_follow_their_tokens_in_any_order(name: str, options: dict[str, Any]) -> None:
    method = build(name, options)

    @untimed
    @given(st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=6), st.randoms(use_true_random=False))
    def check(lr: list[float], random: Any) -> None:
        order = list(range(len(lr)))
        random.shuffle(order)
        shuffled = [lr[i] for i in order]
        a, b = weights(method, view_of([lr, lr])), weights(method, view_of([lr, shuffled]))
        np.testing.assert_allclose(b[len(lr) :], a[: len(lr)][order], rtol=1e-9)

    check()


@pytest.mark.parametrize("beside", [0.0, 1e4, -1e4])
@pytest.mark.parametrize(("name", "options"), METHODS)
def test_a_nan_is_never_rejected_as_if_a_rule_had_judged_it(name: str, options: dict[str, Any], beside: float) -> None:
    w = weights(build(name, options), view_of([[0.0, math.nan, beside], [0.0]]))
    assert math.isnan(w[1])
    assert np.isfinite(w[3])


@pytest.mark.parametrize(("name", "options"), METHODS)
def test_a_mask_changes_nothing_for_the_others(name: str, options: dict[str, Any]) -> None:
    """The coefficient of a kept token is what it would be if nothing were masked: no denominator has moved."""
    v = make_view([1, 0, 0, 1, 1, 0], [0, 0, 1, 1, 2, 2], LENGTHS, spread=0.4)
    consent = [] if build(name, options).corrects else [MethodEntry(name="none")]
    chain = Chain.resolve([MethodEntry(name=name, **options), *consent, MethodEntry(name="linear")], setting())
    w = chain.learner().weigh(v)
    leaf = v.current.clone().requires_grad_()
    v.current_N = leaf
    advantage_N = v.token(v.reward_R * 2 - 1)
    (d_N,) = torch.autograd.grad((v.scale_N * chain.learner().objective(v, w, advantage_N)).sum(), leaf)
    want = -v.weights(w) * advantage_N / (len(LENGTHS) * v.length_R[v.rollout_N])
    torch.testing.assert_close(d_N, want, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize(
    ("name", "metric", "hit", "of"),
    [
        ("geo_mis", "masked", 3, 4),
        ("token_veto", "masked", 1, 4),
        ("k3_reject", "masked", 2, 4),
        ("icepop", "masked", 3, 9),
        ("dis", "masked", 3, 9),
        ("geo_tis", "truncated", 1, 4),
    ],
)
def test_what_was_cut_is_counted(name: str, metric: str, hit: int, of: int) -> None:
    v = view_of([[0.0, 0.0], [-11.0, 0.0, 0.0], [0.02, 0.02], [2.1, 2.1]])
    build(name, {}).weigh(v)  # type: ignore[attr-defined]
    assert notes(v).metrics == {f"{name}/{metric}": (hit, of)}


def test_rollouts_without_tokens_are_not_judged() -> None:
    v = make_view([1, 0, 1], [0, 0, 0], [2, 0, 3], spread=0.001)
    for name in ("geo_mis", "token_veto", "k3_reject", "geo_tis"):
        w = build(name, {}).weigh(v)  # type: ignore[attr-defined]
        assert torch.isfinite(w.log_scale_R).all(), name


# ----------------------------------------------------------------------------------------------------------------------- in a chain


def test_masks_compose_with_a_weight_for_the_same_ratio() -> None:
    chain = Chain.resolve([MethodEntry(name=n) for n in ("tok_tis", "geo_mis", "k3_reject", "token_veto")], setting())
    v = view_of([[0.0, 0.0], [0.001, -0.001], [-11.0, 11.0], [0.5, 0.5]])
    np.testing.assert_allclose(v.weights(chain.learner().weigh(v)), [1, 1, np.exp(0.001), np.exp(-0.001), 0, 0, 0, 0], rtol=1e-12)


@pytest.mark.parametrize("pair", [("icepop", "tok_tis"), ("dis", "seq_tis"), ("geo_tis", "ppo_clip"), ("icepop", "tok_mis")])
def test_two_weights_for_one_ratio_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(TrimtabError, match="both correct"):
        Chain.resolve([MethodEntry(name=n) for n in pair], setting())


def test_a_veto_alone_corrects_nothing() -> None:
    with pytest.raises(TrimtabError, match="nothing corrects for stale rollouts"):
        Chain.resolve([MethodEntry(name="token_veto")], setting())
    Chain.resolve([MethodEntry(name="token_veto"), MethodEntry(name="none")], setting())
    Chain.resolve([MethodEntry(name="geo_mis")], setting())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("geo_mis", {"low": 1.1, "high": 0.9}),
        ("icepop", {"low": 6.0}),
        ("dis", {"low": 1.5}),
        ("token_veto", {"threshold": 1.0}),
        ("k3_reject", {"limit": 0.0}),
        ("geo_tis", {"c": -1.0}),
    ],
)
def test_bounds_that_mean_nothing_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(TrimtabError, match=f"methods.{name}."):
        build(name, options)


def test_truncated_rollouts_leave_the_loss_and_keep_their_say_in_the_baseline() -> None:
    v = view_of([[0.1] * n for n in LENGTHS])
    rollouts = v.score_R.shape[0]
    v.terminated_R = torch.arange(rollouts) != 1
    w = build("mask_truncated", {}).weigh(v)  # type: ignore[attr-defined]
    assert w.keep_N is not None
    assert w.keep_N.tolist() == [int(r) != 1 for r in v.rollout_N]
    assert float(v.weights(w)[v.rollout_N == 1].abs().sum()) == 0.0
    assert notes(v).metrics["mask_truncated/masked"] == (1.0, rollouts)
    with pytest.raises(TrimtabError):
        Chain.resolve([MethodEntry(name="mask_truncated")], setting())
    Chain.resolve([MethodEntry(name="mask_truncated"), MethodEntry(name="seq_tis")], setting())
