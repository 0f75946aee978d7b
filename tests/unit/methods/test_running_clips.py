"""Clips and caps against the run's own past: median_clip, zclip, update_cap."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.views import result, setting, step_view
from trimtab.control.chain import Chain
from trimtab.control.protocol import Keep, Notes, StepView
from trimtab.control.registry import MethodEntry, build
from trimtab.learner.gradient import ActorGradient
from trimtab.records import TrimtabError

CLIPS = ("median_clip", "zclip")


def gradient(norm: float) -> ActorGradient:
    p = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    p.grad = torch.tensor([0.6 * norm, 0.8 * norm], dtype=torch.float64)
    return ActorGradient([p], 0, 0, Notes())


def notes(g: ActorGradient) -> Notes:
    assert isinstance(g.recorder, Notes)
    return g.recorder


def feed(method: Any, norms: Sequence[float], applied: bool = True) -> list[float]:
    """What is left of each norm."""
    left = []
    for norm in norms:
        g = gradient(norm)
        assert method.gradient(g) == Keep()
        left.append(g.norm())
        method.after(result(applied))
    return left


def steps(norm: float) -> StepView:
    return dataclasses.replace(step_view([0.0]), update_norm=lambda: norm)


# ------------------------------------------------------------------------------------------------------------------ median_clip


def reference(norms: Sequence[float], factor: float = 3.0, size: int = 64, start: int = 20) -> list[float]:
    """The recipe in plain Python."""
    window: list[float] = []
    left = []
    for n in norms:
        if len(window) >= start:
            n = min(n, factor * float(np.median(window[-size:])))
        if n > 0:
            window.append(n)
        left.append(n)
    return left


@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e6)), max_size=60), st.floats(1.1, 10.0))
def test_the_recipe(norms: list[float], factor: float) -> None:
    method = build("median_clip", {"factor": factor, "window": 16, "warmup": 5})
    assert feed(method, norms) == pytest.approx(reference(norms, factor, 16, 5), rel=1e-12)


def test_nothing_is_clipped_before_20_norms_and_then_at_half_more_than_the_median() -> None:
    method = build("median_clip", {})
    assert feed(method, [1.0] * 19 + [50.0]) == [1.0] * 19 + [50.0]
    g = gradient(50.0)
    method.gradient(g)  # type: ignore[attr-defined]
    assert g.norm() == pytest.approx(1.5)
    (said,) = notes(g).decisions
    assert (said.method, said.point, said.what, said.amount) == ("median_clip", "gradient", "clipped", pytest.approx(0.03))
    assert said.why == "norm 50 > 1.5 x median 1"
    assert notes(g).metrics == {"median_clip/clipped": (1.0, 1.0), "median_clip/ratio": (50.0, 1.0)}


def test_a_burst_cannot_raise_its_own_limit_before_half_the_window_is_clipped_values() -> None:
    method = build("median_clip", {})
    left = feed(method, [1.0] * 64 + [1000.0] * 64)
    assert left[64:96] == pytest.approx([1.5] * 32)  # the median is still 1
    assert left[96] == pytest.approx(1.875)  # between 1 and 1.5
    assert left[97:] == pytest.approx([2.25] * 31)


@pytest.mark.parametrize("name", CLIPS)
def test_skipped_updates_and_zero_norms_teach_nothing(name: str) -> None:
    method = build(name, {})
    feed(method, [1.0 + 0.01 * i for i in range(30)])
    before = json.dumps(method.state_dict())
    feed(method, [0.7, 5.0], applied=False)
    method.after(result(applied=False))  # an update that never came to the gradient point
    method.after(result(applied=True))
    feed(method, [0.0])
    assert json.dumps(method.state_dict()) == before


@pytest.mark.parametrize("name", [*CLIPS, "update_cap"])
def test_a_warmup_or_window_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(TrimtabError, match=rf"methods\.{name}"):
        build(name, {"warmup": 100, "window": 10})


@pytest.mark.parametrize("listed", [["vcpo", "median_clip"], ["seq_tis", "b0", "norm_clip", "median_clip"]])
def test_the_absolute_clip_comes_first(listed: list[str]) -> None:
    chain = Chain.resolve([MethodEntry(name=n) for n in listed], setting())
    order = [m.name for m in chain.methods]
    assert order.index("norm_clip") + 1 == order.index("median_clip")
    assert order.count("norm_clip") == 1
    g = gradient(40.0)
    chain.learner().gradient(g)
    assert g.norm() == pytest.approx(1.0)
    chain.learner().after(result(applied=True))
    assert chain.learner().state_dict()["median_clip"] == {"window": [pytest.approx(1.0)]}


@pytest.mark.parametrize("name", CLIPS)
def test_a_chain_without_an_absolute_clip_says_so(name: str) -> None:
    for listed in (["seq_tis", "b0", name], [name, "vcpo"]):
        chain = Chain.resolve([MethodEntry(name=n) for n in listed], setting())
        assert [said for said in chain.said if said.startswith(f"{name} has no norm_clip before it")]
    assert Chain.resolve([MethodEntry(name="vcpo"), MethodEntry(name=name)], setting()).said == []


# ------------------------------------------------------------------------------------------------------------------------ zclip


def test_a_norm_far_out_is_brought_nearer_to_the_mean_the_further_out_it_was() -> None:
    start = [1.0 + 0.1 * (-1) ** i for i in range(26)]  # 25 of them: mean 1.004, sd 0.09992
    mean, sd = float(np.mean(start[:25])), float(np.std(start[:25]))
    for z in (2.6, 5.0, 50.0):
        method = build("zclip", {})
        feed(method, start[:25])
        g = gradient(mean + z * sd)
        method.gradient(g)  # type: ignore[attr-defined]
        assert g.norm() == pytest.approx(mean + 2.5**2 / z * sd)
        method.after(result(applied=True))
        n = g.norm()
        want_mean = 0.97 * mean + 0.03 * n
        assert method.state_dict()["mean"] == pytest.approx(want_mean)
        assert method.state_dict()["var"] == pytest.approx(0.97 * sd**2 + 0.03 * (n - want_mean) ** 2)
    method = build("zclip", {})
    feed(method, start[:25])
    assert feed(method, [mean + 2.4 * sd, mean - 9 * sd]) == pytest.approx([mean + 2.4 * sd, mean - 9 * sd])


def test_equal_norms_have_no_spread_and_anything_above_them_is_clipped_to_the_mean() -> None:
    method = build("zclip", {})
    assert feed(method, [2.0] * 30 + [9.0]) == pytest.approx([2.0] * 31)


def test_the_ratio_rule_clips_at_a_multiple_of_the_mean() -> None:
    method = build("zclip", {"rule": "ratio", "ratio": 1.5, "warmup": 2})
    assert feed(method, [1.0, 3.0, 10.0]) == pytest.approx([1.0, 3.0, 3.0])
    assert method.state_dict()["mean"] == pytest.approx(0.97 * 2.0 + 0.03 * 3.0)


# ------------------------------------------------------------------------------------------------------------------- update_cap


def test_the_step_is_capped_at_two_medians_and_the_capped_value_is_kept() -> None:
    method: Any = build("update_cap", {"warmup": 3})
    for norm in (1.0, 2.0, 3.0):
        assert method.step(steps(norm)) == 1.0
        method.after(result(applied=True))
    view = steps(16.0)
    assert method.step(view) == pytest.approx(0.25)
    (said,) = view.recorder.decisions  # type: ignore[attr-defined]
    assert (said.point, said.what, said.why) == ("step", "scaled", "update 16 > 2 x median 2")
    method.after(result(applied=True))
    assert method.state_dict() == {"window": [1.0, 2.0, 3.0, 4.0]}
    assert method.step(steps(0.0)) == 1.0


# ------------------------------------------------------------------------------------------------------------------------ state


@pytest.mark.parametrize("name", CLIPS)
def test_a_clip_goes_on_from_its_state(name: str) -> None:
    rng = np.random.default_rng(0)
    norms = np.exp(rng.normal(size=200)).tolist()
    whole = build(name, {})
    want = feed(whole, norms)
    first, second = build(name, {}), build(name, {})
    left = feed(first, norms[:90])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert left + feed(second, norms[90:]) == want
    assert second.state_dict() == whole.state_dict()
