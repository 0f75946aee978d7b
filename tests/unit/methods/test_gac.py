"""GAC: regimes of the cosine, projection, the guard, references, parts, state."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from support.updates import make_batch, make_learner, tiny_model
from support.views import result, setting
from trimtab.control.chain import Chain
from trimtab.control.protocol import Keep, Notes, Skip
from trimtab.control.registry import MethodEntry, build
from trimtab.learner.gradient import ActorGradient
from trimtab.methods.gac import GAC
from trimtab.records import TrimtabError

P, G = (2.0, 0.0, 0.0), (3.0, 4.0, 0.0)  # cosine 0.6


def gac(**options: Any) -> GAC:
    method = build("gac", options)
    assert isinstance(method, GAC)
    return method


def gradient(*parts: Sequence[float], batch: int = 0, dtype: torch.dtype = torch.float64) -> ActorGradient:
    """Each part is a parameter and a group of its own."""
    ps = [nn.Parameter(torch.zeros(len(part), dtype=dtype)) for part in parts]
    for p, part in zip(ps, parts, strict=True):
        p.grad = torch.tensor(part, dtype=dtype)
    return ActorGradient(ps, batch, 0, Notes(), groups=[f"g{i}" for i in range(len(parts))])


def flat(g: ActorGradient) -> list[float]:
    return torch.cat([p.flatten() for p in g.parts]).tolist()


def feed(method: GAC, *parts: Sequence[float], applied: bool = True, batch: int = 0) -> tuple[Keep | Skip, list[float], Notes]:
    """One update: the verdict, what is left of the gradient, what was said."""
    g = gradient(*parts, batch=batch)
    verdict = method.gradient(g)
    method.after(result(applied and isinstance(verdict, Keep)))
    assert isinstance(g.recorder, Notes)
    return verdict, flat(g), g.recorder


# ------------------------------------------------------------------------------------------------------------------ golden values


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, (0.0, 4.0, 0.0)),
        ({"mode": "cone"}, (0.4020151, 4.0, 0.0)),
        ({"mode": "cone", "c_low": 0.3}, (1.2579418, 4.0, 0.0)),
        ({"mode": "scale", "retain": 0.25}, (0.75, 4.0, 0.0)),
        ({"c_low": 0.7, "c_high": 0.9}, G),
        ({"monitor": True}, G),
    ],
)
def test_golden(options: dict[str, Any], want: Sequence[float]) -> None:
    method = gac(**{"c_high": 0.61} | options)
    feed(method, P)
    verdict, left, notes = feed(method, G)
    assert verdict == Keep()
    assert left == pytest.approx(want, abs=1e-7)
    assert notes.metrics["gac/cosine"] == (pytest.approx(0.6), 1.0)
    if "monitor" in options:
        return
    ratio = np.linalg.norm(want) / 5
    assert notes.metrics["gac/norm_ratio"] == (pytest.approx(ratio, abs=1e-7), 1.0)
    assert notes.metrics["gac/removed"] == (pytest.approx(1 - ratio**2, abs=1e-7), 1.0)
    assert [(d.method, d.point, d.what, d.why) for d in notes.decisions] == (
        [("gac", "gradient", "projected", "cosine 0.6")] if ratio < 1 else []
    )


def test_above_the_upper_threshold_there_is_no_step() -> None:
    method = gac(c_high=0.5)
    feed(method, P)
    verdict, left, notes = feed(method, G)
    assert verdict == Skip("cosine 0.6 > 0.5")
    assert left == list(G)
    assert notes.metrics["gac/skipped"] == (1.0, 1.0)


# --------------------------------------------------------------------------------------------------------------------- properties


def vectors(seed: int, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, n))
    return a, b + rng.uniform(-2, 2) * a


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["full", "cone", "scale"]), st.floats(0.0, 0.8), st.floats(1e-6, 1e6))
def test_the_projection(seed: int, mode: str, c_low: float, size: float) -> None:
    p, g = vectors(seed)
    g *= size
    c = float(g @ p / np.linalg.norm(g) / np.linalg.norm(p))
    method = gac(mode=mode, c_low=c_low, c_high=1.0, retain=0.3)
    feed(method, p.tolist())
    verdict, left, _ = feed(method, g.tolist())
    assert verdict == Keep()
    out = np.array(left)
    if c <= c_low:  # one-sided: every negative cosine too
        assert left == g.tolist()
        return
    after = float(out @ p / np.linalg.norm(out) / np.linalg.norm(p))
    if mode == "full":
        assert abs(after) < 1e-9
        assert np.linalg.norm(out) == pytest.approx(np.linalg.norm(g) * math.sqrt(1 - c * c))
    elif mode == "cone":
        assert after == pytest.approx(c_low, abs=1e-9)
    else:
        assert out @ p == pytest.approx(0.3 * (g @ p))
    assert out @ g >= 0  # still a descent direction
    beside = g - (g @ p) / (p @ p) * p
    np.testing.assert_allclose(out - (out @ p) / (p @ p) * p, beside, atol=1e-9 * size)  # only the aligned part changed


def test_the_cone_is_continuous_at_the_threshold() -> None:
    for c in (0.1, 0.1000001):
        method = gac(mode="cone", c_high=1.0)
        feed(method, P)
        _, left, _ = feed(method, (c, math.sqrt(1 - c * c), 0.0))
        assert left == pytest.approx((0.1, math.sqrt(0.99), 0.0), abs=1e-6)


@pytest.mark.parametrize(("snr", "raw", "applied"), [(0.05, 0.954, 0.955), (0.25, 0.800, 0.851), (1.0, 0.501, 0.708)])
def test_progress_kept_along_a_persistent_direction(snr: float, raw: float, applied: float) -> None:
    """g_t = d + noise of norm 1: the rule cuts d, and nothing else, to 1/(1+SNR) with the raw reference."""
    rng = np.random.default_rng(0)
    d = np.zeros(4000)
    d[0] = math.sqrt(snr)
    for reference, want in (("raw", raw), ("applied", applied)):
        method = gac(c_low=0.02, c_high=1.0, reference=reference)
        kept = []
        for _ in range(300):
            noise = rng.normal(size=4000)
            kept.append(feed(method, (d + noise / np.linalg.norm(noise)).tolist())[1][0])
        assert np.mean(kept[20:]) / d[0] == pytest.approx(want, abs=0.03)


# ------------------------------------------------------------------------------------------------------------------------- guard


def test_the_third_skip_in_a_row_becomes_a_full_projection() -> None:
    method = gac(mode="cone")
    verdicts = [feed(method, P)[0] for _ in range(7)]
    assert [isinstance(v, Skip) for v in verdicts] == [False, True, True, False, True, True, False]
    method = gac(mode="cone", c_high=0.5)
    for direction in (P, G, G):
        feed(method, direction)
    _, left, notes = feed(method, (2.0, 3.0, 4.0))  # the reference is G: cosine 0.669
    assert left == pytest.approx(np.array([2.0, 3.0, 4.0]) - 18 / 25 * np.array(G))
    assert notes.decisions[0].why == "cosine 0.669 > 0.5 after 2 skips"


def test_a_refused_projection_keeps_the_count() -> None:
    method = gac(max_consecutive_skips=1)
    assert [feed(method, P, applied=False)[0] for _ in range(3)] == [Keep(), Skip("cosine 1 > 0.6"), Keep()]
    assert feed(method, P)[0] == Keep()  # still no step in between
    assert isinstance(feed(method, P)[0], Skip)
    assert feed(gac(max_consecutive_skips=0), P)[0] == Keep()


# --------------------------------------------------------------------------------------------------------------------- reference


def held(method: GAC) -> list[float]:
    state = method.state_dict()
    found = [t for key, tensors in state.items() if key.startswith("reference/") for t in tensors]  # type: ignore[union-attr]
    return torch.cat([t.double().flatten() for t in found]).tolist() if found else []  # type: ignore[union-attr]


def test_the_raw_reference_is_the_gradient_as_it_came_in_every_regime() -> None:
    method = gac(c_high=0.65)
    for direction in (P, G, (3.0, 4.1, 0.0), (-1.0, 0.0, 0.0)):  # init, project, skip, keep
        feed(method, direction)
        assert held(method) == list(direction)
    feed(method, (0.0, 5.0, 0.0), applied=False)  # refused elsewhere: it was a gradient all the same
    assert held(method) == [0.0, 5.0, 0.0]


def test_the_applied_reference_is_what_was_stepped() -> None:
    method = gac(c_high=0.65, reference="applied")
    feed(method, P, applied=False)
    assert held(method) == []
    feed(method, P)
    feed(method, G)
    assert held(method) == pytest.approx([0.0, 4.0, 0.0])
    assert isinstance(feed(method, (0.0, 1.0, 0.0))[0], Skip)
    feed(method, (1.0, 0.0, 0.0), applied=False)
    assert held(method) == pytest.approx([0.0, 4.0, 0.0])


@pytest.mark.parametrize("reference", ["raw", "applied"])
@pytest.mark.parametrize("granularity", ["global", "param_group"])
def test_a_gradient_without_direction_or_not_finite_is_never_remembered(reference: str, granularity: str) -> None:
    method = gac(reference=reference, granularity=granularity)
    feed(method, P)
    for odd in ((0.0, 0.0, 0.0), (1e-14, 0.0, 0.0), (math.nan, 1.0, 1.0), (math.inf, 0.0, 0.0)):
        verdict, left, notes = feed(method, odd)
        assert verdict == Keep()
        np.testing.assert_array_equal(left, odd)
        assert notes.metrics == {}
        assert held(method) == list(P)


def test_a_copy_in_bf16_still_projects_to_a_right_angle() -> None:
    rng = np.random.default_rng(0)
    p, g = rng.normal(size=(2, 500))
    method = gac(copy_dtype="bf16", c_high=1.0, c_low=0.0)
    feed(method, p.tolist())
    kept = np.array(held(method))
    assert next(iter(method._reference.values())).state()[0].dtype == torch.bfloat16
    _, left, notes = feed(method, (g + 0.5 * p).tolist())
    assert abs(np.array(left) @ kept) < 1e-9
    exact = (g + 0.5 * p) @ p / np.linalg.norm(g + 0.5 * p) / np.linalg.norm(p)
    assert notes.metrics["gac/cosine"][0] == pytest.approx(exact, abs=2e-3)


# ------------------------------------------------------------------------------------------------------------- parts and boundaries


def test_per_parameter_group_every_part_has_its_own_cosine_and_skips_go_by_the_whole() -> None:
    method = gac(granularity="param_group", c_high=0.7)
    a, b, c = P, (0.0, 1.0, 0.0), (1.0, 0.0)
    feed(method, a, b, c)
    # cosines 0.6, -1, 1; of the whole (6 - 4 + 1) / (sqrt(25 + 16 + 1) sqrt(6)) = 0.189
    verdict, left, notes = feed(method, G, (0.0, -4.0, 0.0), c)
    assert verdict == Keep()
    assert left == pytest.approx([0.0, 4.0, 0.0, 0.0, -4.0, 0.0, 0.0, 0.0])
    assert notes.metrics["gac/cosine"][0] == pytest.approx(3 / math.sqrt(42 * 6))
    assert notes.metrics["gac/norm_ratio"][0] == pytest.approx(math.sqrt(32 / 42))
    assert notes.metrics["gac/removed"][0] == pytest.approx(10 / 42)
    assert isinstance(feed(method, G, (0.0, -4.0, 0.0), c)[0], Skip)


def test_one_part_is_the_whole() -> None:
    one, whole = gac(granularity="param_group"), gac()
    for direction in (P, G, (0.0, 1.0, 1.0), (0.1, 1.0, -1.0)):
        a, b = feed(one, direction), feed(whole, direction)
        assert (a[0], a[1], a[2].metrics) == (b[0], b[1], b[2].metrics)


def test_pairs_within_a_batch_are_told_from_pairs_across() -> None:
    for boundary, acts in (("update", True), ("batch", False)):
        method = gac(boundary=boundary, c_high=1.0)
        feed(method, P, batch=4)
        _, left, notes = feed(method, G, batch=4)
        assert (left != list(G)) is acts
        assert set(notes.metrics) >= {"gac/cosine", "gac/cosine_within"}
        assert "gac/cosine_across" not in notes.metrics
        _, left, notes = feed(method, (4.0, 3.0, 0.0), batch=5)
        assert left != [4.0, 3.0, 0.0]
        assert notes.metrics["gac/cosine_across"] == (pytest.approx(0.96), 1.0)  # with the last of the batch before


def test_warm_up_only_measures() -> None:
    method = gac(warmup=3)
    verdicts = [feed(method, P)[0] for _ in range(4)]
    assert [isinstance(v, Skip) for v in verdicts] == [False, False, False, True]


# ------------------------------------------------------------------------------------------------------------------ state, chain


@pytest.mark.parametrize("options", [{}, {"reference": "applied"}, {"granularity": "param_group"}, {"copy_dtype": "bf16"}])
def test_it_goes_on_from_its_state(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    steps = [(rng.normal(size=4) + 1, rng.normal(size=3) + 1) for _ in range(12)]
    whole, first, second = gac(**options), gac(**options), gac(**options)
    want = [feed(whole, *s) for s in steps]
    got = [feed(first, *s) for s in steps[:5]]
    second.load_state_dict(first.state_dict())
    second.load_state_dict(second.state_dict())  # before any gradient was seen
    got += [feed(second, *s) for s in steps[5:]]
    assert [(v, left, n.metrics) for v, left, n in got] == [(v, left, n.metrics) for v, left, n in want]
    assert held(second) == held(whole)


def test_a_reference_of_other_parameters_is_dropped() -> None:
    for options in ({}, {"granularity": "param_group"}):
        old, new = gac(**options), gac(**options)
        feed(old, P, P)
        new.load_state_dict(old.state_dict())
        _, left, notes = feed(new, P, (2.0, 0.0))
        assert (left, notes.metrics) == ([2.0, 0.0, 0.0, 2.0, 0.0], {})
        assert len(held(new)) == 5
        new.load_state_dict(old.state_dict())
        assert feed(new, P)[2].metrics == {}


@pytest.mark.parametrize("bad", [{"c_low": 0.7}, {"c_high": 0.0}, {"c_low": 1.0, "c_high": 1.0}, {"retain": 1.0}])
def test_impossible_options_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(TrimtabError, match=r"methods\.gac"):
        build("gac", bad)


def test_it_acts_before_every_clip() -> None:
    chain = Chain.resolve([MethodEntry(name=n) for n in ("vcpo", "median_clip", "gac")], setting())
    names = [m.name for m in chain.methods]
    assert names.index("gac") < names.index("norm_clip") < names.index("median_clip")


# ----------------------------------------------------------------------------------------------------------------- the learner


def test_a_skip_moves_nothing() -> None:
    model = tiny_model(torch.float32)
    methods = ["seq_tis", "grpo", {"name": "gac", "c_high": 0.3}, "median_clip"]
    learner, _ = make_learner(model, methods, schedule={"kind": "wsd", "stable": 1, "decay": 50})
    batch = make_batch(model)
    assert [r.applied for r in learner.train(batch)] == [True]

    def moving() -> dict[str, Any]:
        state = learner.optimizer.state_dict()
        weights = {n: p.detach().clone() for n, p in learner.model.model.named_parameters()}
        clip = learner.chain.state_dict()["median_clip"]
        return {"weights": weights, "optimizer": state, "lr": learner.optimizer.lr, "batches": learner.applied_batches, "clip": clip}

    before = moving()
    (skipped,) = learner.train(dataclasses.replace(batch, number=1))
    assert (skipped.applied, skipped.multiplier) == (False, 0.0)
    assert skipped.reason == "gac: cosine 0.663 > 0.3"
    assert [(d.method, d.what) for d in skipped.notes.decisions] == [("gac", "skipped")]
    after = moving()
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert [r.applied for r in learner.train(dataclasses.replace(batch, number=2))] == [False]
    assert [r.applied for r in learner.train(dataclasses.replace(batch, number=3))] == [True]  # the guard
