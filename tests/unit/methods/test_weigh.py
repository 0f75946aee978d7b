"""Importance weights against NumPy, token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from support.views import make_view, notes, ratios, setting
from trimtab.control.chain import Chain
from trimtab.control.protocol import Method, View
from trimtab.control.registry import MethodEntry, build

LENGTHS = [3, 1, 7, 4, 5, 2]


def view(seed: int = 0, spread: float = 1.5) -> View:
    return make_view([1, 0, 0, 1, 1, 0], [0, 0, 1, 1, 2, 2], LENGTHS, seed=seed, spread=spread)


def weights(method: Method, v: View) -> np.ndarray:
    return np.asarray(v.weights(method.weigh(v)))  # type: ignore[attr-defined]


def spread(x_R: np.ndarray) -> np.ndarray:
    return np.repeat(x_R, LENGTHS)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("none", {}),
        ("seq_tis", {}),
        ("seq_tis", {"c": 2.0}),
        ("tok_tis", {"c": 1.5}),
        ("seq_mis", {"high": 4.0}),
        ("seq_mis", {"high": 4.0, "low": 0.25}),
        ("tok_mis", {"high": 5.0, "low": 0.5}),
    ],
)
def test_the_weight_of_every_token(name: str, options: dict[str, Any], seed: int) -> None:
    v = view(seed)
    s_N, s_R = ratios(v)
    w_N, w_R = np.exp(s_N), np.exp(s_R)
    low, high = options.get("low", 0.0), options.get("high", 8.0)
    want = {
        "none": np.ones(sum(LENGTHS)),
        "seq_tis": spread(np.minimum(w_R, options.get("c", 8.0))),
        "tok_tis": np.minimum(w_N, options.get("c", 8.0)),
        "seq_mis": spread(np.where((w_R >= low) & (w_R <= high), w_R, 0.0)),
        "tok_mis": np.where((w_N >= low) & (w_N <= high), w_N, 0.0),
    }[name]
    np.testing.assert_allclose(weights(build(name, options), v), want, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "options", "metric", "hit"),
    [
        ("seq_tis", {"c": 2.0}, "seq_tis/truncated", lambda s_N, s_R: s_R > np.log(2.0)),
        ("tok_tis", {"c": 1.5}, "tok_tis/truncated", lambda s_N, s_R: s_N > np.log(1.5)),
        ("seq_mis", {"high": 4.0}, "seq_mis/masked", lambda s_N, s_R: s_R > np.log(4.0)),
        ("tok_mis", {"high": 2.0, "low": 0.5}, "tok_mis/masked", lambda s_N, s_R: np.abs(s_N) > np.log(2.0)),
    ],
)
def test_what_was_cut_is_counted(name: str, options: dict[str, Any], metric: str, hit: Any) -> None:
    v = view()
    build(name, options).weigh(v)  # type: ignore[attr-defined]
    cut = hit(*ratios(v))
    assert 0 < cut.sum() < len(cut)
    assert notes(v).metrics == {metric: (cut.sum(), len(cut))}


def test_a_ratio_far_beyond_the_exponential_is_still_the_cap() -> None:
    v = view()
    assert v.current_N is not None
    v.current_N = v.current_N + 2000.0
    assert torch.isfinite(v.weights(build("seq_tis", {}).weigh(v))).all()  # type: ignore[attr-defined]
    assert weights(build("seq_tis", {}), v) == pytest.approx(8.0)
    assert weights(build("seq_mis", {}), v) == pytest.approx(0.0)
    assert weights(build("tok_mis", {}), v) == pytest.approx(0.0)


def test_weighings_of_several_methods_multiply_and_their_masks_intersect() -> None:
    v = view()
    entries = [MethodEntry(name="tok_mis"), MethodEntry(name="linear")]
    c = Chain.resolve(entries, setting())
    c.members[0].method.options = type(c.members[0].method.options)(high=2.0, low=0.5)
    second = build("seq_tis", {"c": 2.0})
    c.members.insert(0, type(c.members[0])(second, ""))  # what `resolve` refuses, `weigh` still multiplies
    s_N, s_R = ratios(v)
    want = np.where((np.exp(s_N) >= 0.5) & (np.exp(s_N) <= 2.0), np.exp(s_N), 0.0) * spread(np.minimum(np.exp(s_R), 2.0))
    np.testing.assert_allclose(v.weights(c.learner().weigh(v)), want, rtol=1e-12)


def test_weights_never_carry_a_gradient() -> None:
    v = view()
    assert v.current_N is not None
    v.current_N = v.current_N.clone().requires_grad_()
    for name in ("seq_tis", "tok_tis", "seq_mis", "tok_mis"):
        assert not v.weights(build(name, {}).weigh(v)).requires_grad  # type: ignore[attr-defined]
