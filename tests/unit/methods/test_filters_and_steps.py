"""Dynamic sampling, the overlong punishment, normalized weights and the minimum effective sample size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.updates import Capture, behavior, gradient_of, make_batch, make_learner, plain_logps, tiny_model, worst
from support.views import make_view, notes, result, setting, step_view
from trimtab.control.chain import Chain
from trimtab.control.protocol import GroupStats, Keep, Notes, Refuse, Reject, Skip
from trimtab.control.registry import ChainMember, MethodEntry, build
from trimtab.methods.dynamic_sampling import DynamicSampling
from trimtab.records import TrimtabError

untimed = settings(deadline=None, max_examples=60)

# ----------------------------------------------------------------------------------------------------------------- dynamic sampling


def group(*scores: float) -> GroupStats:
    n = len(scores)
    return GroupStats(
        scores_R=np.array(scores, dtype=np.float64),
        lengths_R=np.ones(n, np.int64),
        oldest=0,
        mean_version=0.0,
        now=0,
        truncated_R=np.zeros(n, bool),
    )


def sampling(**options: Any) -> DynamicSampling:
    method = build("dynamic_sampling", options)
    assert isinstance(method, DynamicSampling)
    return method


def test_groups_of_one_score_are_dropped_whatever_the_score() -> None:
    method = sampling()
    for scores in ((0, 0, 0), (1, 1, 1), (0.3, 0.3), (1, 1, 1 + 1e-9), (1, 1 - 1.2e-7, 1)):  # the last two: float32's rounding
        assert method.accept(group(*scores)) == Reject("constant score", "all its members have the same score")
    for scores in ((0, 1, 0), (1, 1, 1 - 1e-5), (0.3, -0.3), (1e-7, -1e-7)):
        assert method.accept(group(*scores)) is None


def test_the_refill_budget_is_renewed_by_every_update_and_survives_a_checkpoint() -> None:
    method = sampling(max_refill=2)
    drops = [method.accept(group(1, 1)) is not None for _ in range(4)]
    assert drops == [True, True, False, False]
    assert method.accept(group(0, 1)) is None
    other = sampling(max_refill=2)
    other.load_state_dict(method.state_dict())
    assert other.accept(group(1, 1)) is None
    other.after(result(applied=False))
    assert other.accept(group(1, 1)) is not None


def test_a_group_of_one_cannot_differ() -> None:
    with pytest.raises(TrimtabError, match=r"rollout.group_size = 1: dynamic_sampling compares"):
        Chain.resolve(
            [MethodEntry(name="dynamic_sampling"), MethodEntry(name="seq_tis"), MethodEntry(name="reinforce")], setting(group_size=1)
        )


# -------------------------------------------------------------------------------------------------------------------------- overlong


def punishments(lengths: list[int], **options: Any) -> np.ndarray:
    v = make_view([1.0] * len(lengths), [0] * len(lengths), lengths)
    added_N = build("overlong", options).shape(v)  # type: ignore[attr-defined]
    last = np.cumsum(lengths) - 1
    rest = np.delete(added_N.numpy(), [i for i, n in zip(last, lengths, strict=True) if n])
    assert (rest == 0).all(), "it is on the last action token"
    return np.array(v.sum_R(added_N))


def test_the_punishment_grows_over_the_buffer() -> None:
    got = punishments([1, 6, 8, 9, 10, 12, 0], max_length=10, buffer=4, factor=0.5)
    np.testing.assert_allclose(got, [0, 0, -0.25, -0.375, -0.5, -0.5, 0], atol=1e-15)


def test_published_values() -> None:
    got = punishments([16384, 18432, 20480], max_length=20480, buffer=4096)
    np.testing.assert_allclose(got, [0, -0.5, -1.0], atol=1e-15)
    np.testing.assert_allclose(punishments([16384, 18432, 20480]), got)  # the run's own limit, and a fifth of it


def test_a_limit_of_one_token_is_no_division_by_zero() -> None:
    assert punishments([1, 1]).tolist() == [-1.0, -1.0]


@untimed
@given(st.lists(st.integers(0, 40), min_size=2, max_size=6), st.integers(1, 30), st.integers(1, 30), st.floats(0.1, 3))
def test_never_a_reward_and_never_more_than_the_factor(lengths: list[int], limit: int, buffer: int, factor: float) -> None:
    if not any(lengths) or buffer > limit:
        return
    got = punishments(lengths, max_length=limit, buffer=buffer, factor=factor)
    want = [max(-factor, min(0.0, -(n - (limit - buffer)) / buffer * factor)) if n else 0.0 for n in lengths]
    np.testing.assert_allclose(got, want, atol=1e-12)


def test_a_buffer_longer_than_the_limit_is_refused() -> None:
    with pytest.raises(TrimtabError, match="buffer = 11 must be at most max_length = 10"):
        build("overlong", {"max_length": 10, "buffer": 11})


def test_how_many_were_punished_is_counted() -> None:
    v = make_view([1.0, 1.0, 1.0], [0, 0, 0], [10, 3, 0])
    build("overlong", {}).shape(v)  # type: ignore[attr-defined]
    assert notes(v).metrics == {"overlong/punished": (1, 2)}


def test_the_punishment_enters_the_advantage() -> None:
    model = tiny_model()
    batch = make_batch(model)
    plain, shaped = (gradient_of(model, ["seq_tis", *extra], batch) for extra in ([], ["overlong"]))
    assert worst(shaped, plain) > 1e-3


# ---------------------------------------------------------------------------------------------------------------- normalized weights


@dataclass
class OneNumber:
    """A gradient of one number that keeps what is done to it."""

    weight_R: Tensor
    length_R: Tensor
    value: float = 6.0
    recorder: Notes = field(default_factory=Notes)
    raw_norm: float = 6.0
    batch_id: int = 0
    mini_step: int = 0

    def norm(self) -> float:
        return abs(self.value)

    def scale(self, factor: float) -> None:
        self.value *= factor


def normalized(weights: list[float], lengths: list[int], level: str = "token") -> tuple[float, Keep | Skip]:
    g = OneNumber(torch.tensor(weights, dtype=torch.float64), torch.tensor(lengths))
    verdict = build("batch_norm_weights", {"level": level}).gradient(g)  # type: ignore[attr-defined, arg-type]
    return g.value, verdict


def test_the_mean_is_over_tokens_or_over_rollouts() -> None:
    assert normalized([2.0, 0.5, 9.0], [3, 1, 0])[0] == pytest.approx(6.0 / ((2.0 * 3 + 0.5) / 4))
    assert normalized([2.0, 0.5, 9.0], [3, 1, 0], "sequence")[0] == pytest.approx(6.0 / 1.25)


def test_a_vanishing_or_missing_mean_divides_nothing_and_a_nan_is_skipped() -> None:
    assert normalized([1e-9, 0.0], [3, 1]) == (6.0, Keep())
    assert normalized([], []) == (6.0, Keep())
    assert normalized([math.nan], [0]) == (6.0, Keep())
    assert normalized([math.nan, 1.0], [3, 1]) == (6.0, Skip("the mean importance weight is not finite"))


@untimed
@given(st.lists(st.tuples(st.floats(0.01, 8), st.integers(1, 9)), min_size=1, max_size=8), st.floats(0.1, 10))
def test_the_scale_of_the_weights_cancels(pairs: list[tuple[float, int]], scale: float) -> None:
    """g is linear in w, so w -> c w gives c g, and c g / mean(c w) = g / mean(w)."""
    weights, lengths = [w for w, _ in pairs], [n for _, n in pairs]
    for level in ("token", "sequence"):
        plain, _ = normalized(weights, lengths, level)
        scaled, _ = normalized([scale * w for w in weights], lengths, level)
        assert scaled * scale == pytest.approx(plain, rel=1e-9)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_learner_divides_by_the_mean_of_what_it_applied(level: str) -> None:
    model = tiny_model()
    batch = make_batch(model, spread=0.6)
    methods = [{"name": "tok_tis", "c": 1.5}, {"name": "batch_norm_weights", "level": level}, {"name": "norm_clip", "max_norm": 1e9}]
    learner, before = make_learner(model, methods)
    after = Capture(stop=True)
    learner.chain.members.append(ChainMember(after, ""))
    learner.train(batch)
    with torch.no_grad():
        logps = plain_logps(model, batch.rollouts)
    weights = [(logp - behavior(r)).exp().clamp(max=1.5) for logp, r in zip(logps, batch.rollouts, strict=True)]
    mean = torch.cat(weights).mean() if level == "token" else torch.stack([w.mean() for w in weights]).mean()
    assert abs(float(mean) - 1.0) > 1e-3
    assert worst(after.seen[0], [g / mean for g in before.seen[0]]) < 1e-10


def test_it_comes_before_every_clip_and_needs_a_weight() -> None:
    chain = Chain.resolve([MethodEntry(name=n) for n in ("norm_clip", "seq_tis", "batch_norm_weights")], setting())
    names = [m.name for m in chain.methods]
    assert names.index("batch_norm_weights") < names.index("norm_clip")
    assert "norm_clip" in [
        m.name for m in Chain.resolve([MethodEntry(name=n) for n in ("seq_tis", "batch_norm_weights")], setting()).methods
    ]
    for lone in (["none"], ["geo_mis"], ["ppo_clip"]):
        with pytest.raises(TrimtabError, match="needs a weight to normalize"):
            Chain.resolve([MethodEntry(name=n) for n in (*lone, "batch_norm_weights")], setting())


# --------------------------------------------------------------------------------------------------------------------------- min_ess


def test_small_samples_are_refused_and_others_stepped_in_full() -> None:
    log_w = np.log([2.0, 1.0, 0.5, 0.1]).tolist()  # ESS 2.4639, ratio .6160
    assert build("min_ess", {"threshold": 0.6159}).step(step_view(log_w)) == 1.0  # type: ignore[attr-defined]
    assert build("min_ess", {"threshold": 0.6161}).step(step_view(log_w)) == Refuse("ESS/B 0.616 < 0.6161")  # type: ignore[attr-defined]


def test_extreme_and_broken_ratios_are_refused() -> None:
    method = build("min_ess", {})
    assert isinstance(method.step(step_view([1e4, 0.0, -1e4, 0.0])), Refuse)  # type: ignore[attr-defined]
    for broken in (math.nan, math.inf, -math.inf):
        assert method.step(step_view([broken, 0.0])) == Refuse("non-finite importance ratio")  # type: ignore[attr-defined]
    assert method.step(step_view([0.0] * 4)) == 1.0  # type: ignore[attr-defined]


@untimed
@given(st.lists(st.floats(-20, 20), min_size=1, max_size=20), st.floats(0.01, 1.0))
def test_it_refuses_exactly_below_the_threshold(log_w: list[float], threshold: float) -> None:
    w = np.exp(np.array(log_w) - max(log_w))
    ratio = w.sum() ** 2 / (len(w) * (w * w).sum())
    if abs(ratio - threshold) < 1e-9:
        return
    verdict = build("min_ess", {"threshold": threshold}).step(step_view(log_w))  # type: ignore[attr-defined]
    assert isinstance(verdict, Refuse) == (ratio < threshold)
