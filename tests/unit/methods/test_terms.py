"""Additive terms: KL and entropy in the loss, KL in the reward, and a beta that follows a target."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.views import make_view, notes, result, setting
from trimtab.control.chain import Chain
from trimtab.control.protocol import Need, Point, View, Weighing
from trimtab.control.registry import MethodEntry, build
from trimtab.functional import divergence
from trimtab.methods.kl_reward import KLReward
from trimtab.methods.kl_term import KLTerm
from trimtab.records import TrimtabError

LENGTHS = [3, 1, 4]
N = sum(LENGTHS)


def view(seed: int = 0, spread: float = 0.5) -> View:
    v = make_view([1.0, 0.0, 1.0], [0, 0, 0], LENGTHS, seed=seed, spread=spread)
    rng = np.random.default_rng(seed + 7)
    v.reference_N = v.behavior_N + torch.from_numpy(0.7 * rng.normal(size=N))
    v.proximal_N = v.behavior_N + torch.from_numpy(0.2 * rng.normal(size=N))
    v.entropy_N = torch.from_numpy(rng.random(N))
    return v


def one(v: View) -> Weighing:
    return Weighing(torch.zeros(3, dtype=torch.float64))


def kl_term(**options: Any) -> KLTerm:
    method = build("kl_term", options)
    assert isinstance(method, KLTerm)
    return method


def kl_reward(**options: Any) -> KLReward:
    method = build("kl_reward", options)
    assert isinstance(method, KLReward)
    return method


def gradient(method: KLTerm, v: View, w: Weighing | None = None) -> tuple[np.ndarray, np.ndarray]:
    leaf = v.current.detach().clone().requires_grad_()
    loss = method.objective(dataclasses.replace(v, current_N=leaf), w or one(v), torch.zeros(N, dtype=torch.float64))
    return loss.detach().numpy(), torch.autograd.grad(loss.sum(), leaf)[0].numpy()


# -------------------------------------------------------------------------------------------------------------------- in the loss


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("unbiased", [False, True])
def test_the_terms_value_and_derivative_by_hand(estimator: str, unbiased: bool) -> None:
    v = view()
    d, log_r = (v.reference - v.current).numpy(), (v.current - v.behavior_N).numpy()
    value, slope = {"k1": (-d, np.ones(N)), "k2": (d**2 / 2, -d), "k3": (np.exp(d) - 1 - d, 1 - np.exp(d))}[estimator]
    if unbiased:
        value, slope = np.exp(log_r) * value, np.exp(log_r) * (slope + value)
    loss, got = gradient(kl_term(beta=0.3, estimator=estimator, unbiased=unbiased), v)
    np.testing.assert_allclose(loss, 0.3 * value, rtol=1e-12)
    np.testing.assert_allclose(got, 0.3 * slope, rtol=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("unbiased", [False, True])
def test_what_each_estimator_pulls_toward(estimator: str, unbiased: bool) -> None:
    """The docstring's table, as an exact expectation over a vocabulary of six under the policy itself."""
    rng = np.random.default_rng(1)
    logits, reference = torch.from_numpy(rng.normal(size=6)).requires_grad_(), torch.from_numpy(rng.normal(size=6)).log_softmax(0)
    logp = logits.log_softmax(0)
    p = logp.detach().exp()
    v = dataclasses.replace(view(), behavior_N=logp.detach(), reference_N=reference, current_N=logp)
    loss = kl_term(beta=1.0, estimator=estimator, unbiased=unbiased).objective(v, one(v), torch.zeros(6, dtype=torch.float64))
    got = torch.autograd.grad((p * loss).sum(), logits, retain_graph=True)[0]
    q = reference.exp()
    to_reference = torch.autograd.grad((logp.exp() * (logp - reference)).sum(), logits, retain_graph=True)[0]
    from_reference = torch.autograd.grad((q * (reference - logp)).sum(), logits)[0]
    want = {"k1": torch.zeros(6, dtype=torch.float64), "k2": to_reference, "k3": from_reference}[estimator]
    if unbiased and estimator != "k2":
        want = to_reference
    if unbiased and estimator == "k2":
        assert not torch.allclose(got, want)
    else:
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_a_term_is_neither_weighted_nor_masked_nor_scaled_by_credit() -> None:
    v = view()
    keep = Weighing(torch.ones(3, dtype=torch.float64), keep_N=torch.zeros(N, dtype=torch.bool))
    np.testing.assert_array_equal(gradient(kl_term(), v, keep)[0], gradient(kl_term(), v)[0])


def test_the_term_adds_to_the_owners_loss() -> None:
    c = Chain.resolve([MethodEntry(name=n) for n in ("seq_tis", "kl_term", "entropy_term")], setting())
    assert [m.name for m in c.terms] == ["kl_term", "entropy_term"]
    assert c.objective_owner.name == "linear"
    assert Need.REFERENCE in c.needs
    assert Need.VOCAB in c.needs
    assert not c.surveying(Point.OBJECTIVE)
    v = view()
    assert v.entropy_N is not None
    added = c.learner().term(v, one(v), torch.zeros(N, dtype=torch.float64))
    assert added is not None
    d = v.reference - v.current
    torch.testing.assert_close(added, 0.04 * divergence.k3(d) - 0.001 * v.entropy_N)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([-1e4, -30.0, -0.5, 0.0, 3.0, 1e4]), min_size=2 * N, max_size=2 * N), st.booleans())
def test_any_distance_to_the_reference_gives_a_finite_term(d: list[float], unbiased: bool) -> None:
    v = view()
    v.current_N = v.behavior_N + torch.tensor(d[:N], dtype=torch.float64)
    v.reference_N = v.behavior_N + torch.tensor(d[N:], dtype=torch.float64)
    for estimator in ("k1", "k2", "k3"):
        for x in gradient(kl_term(estimator=estimator, unbiased=unbiased), v):
            assert np.isfinite(x).all()
        assert torch.isfinite(kl_reward(estimator=estimator).shape(v)).all()


def test_a_broken_reference_breaks_the_loss() -> None:
    v = view()
    v.reference[2] = math.nan
    for estimator in ("k1", "k2", "k3"):
        assert np.isnan(gradient(kl_term(estimator=estimator), v)[0][2])


def test_the_entropy_bonus() -> None:
    v = view()
    leaf = torch.full((N,), 0.5, dtype=torch.float64, requires_grad=True)
    v.entropy_N = leaf
    loss = build("entropy_term", {"coefficient": 0.01}).objective(v, one(v), leaf)  # type: ignore[attr-defined]
    loss.sum().backward()
    assert leaf.grad is not None
    assert (leaf.grad == -0.01).all()
    v.entropy_N = None
    with pytest.raises(RuntimeError, match=r"Need\.VOCAB"):
        build("entropy_term", {}).objective(v, one(v), leaf)  # type: ignore[attr-defined]


# -------------------------------------------------------------------------------------------------------------------- in the reward


@pytest.mark.parametrize("anchor", ["behavior", "proximal"])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_reward_of_each_token(estimator: str, anchor: str) -> None:
    v = view()
    d = (v.reference - (v.proximal if anchor == "proximal" else v.behavior_N)).numpy()
    want = {"k1": -d, "k2": d**2 / 2, "k3": np.expm1(d) - d}[estimator]
    method = kl_reward(beta=0.2, estimator=estimator, anchor=anchor)
    np.testing.assert_allclose(method.shape(v), -0.2 * want, rtol=1e-12)
    assert notes(v).metrics["kl_reward/kl"] == (pytest.approx(want.sum()), N)
    assert (Need.PROXIMAL in method.needs) is (anchor == "proximal")
    assert Need.REFERENCE in method.needs


def test_k1_of_a_rollout_is_its_log_ratio_to_the_reference() -> None:
    v = view()
    taken = v.sum_R(kl_reward(beta=1.0).shape(v))
    np.testing.assert_allclose(taken, -v.sum_R(v.behavior_N - v.reference), rtol=1e-12)


# -------------------------------------------------------------------------------------------------------------------- adaptive beta


@pytest.mark.parametrize(
    ("kl", "want"),
    [
        (0.1, 1.0),
        (0.11, 1 + 0.1 * 0.05),
        (0.095, 1 - 0.05 * 0.05),
        (5.0, 1 + 0.2 * 0.05),
        (-3.0, 1 - 0.2 * 0.05),
        (math.nan, 1.0),
        (math.inf, 1.0),
    ],
)
def test_the_controller(kl: float, want: float) -> None:
    got = divergence.adapted(0.5, kl, target=0.1, samples=500, horizon=10_000)
    assert got == pytest.approx(0.5 * want, rel=1e-12)
    assert divergence.adapted(0.5, 0.0, target=0.1, samples=10**6, horizon=1) == 0.0  # never negative


def test_beta_follows_its_target_only_through_applied_updates() -> None:
    v = view()
    kl = float(divergence.k3(v.reference - v.current).mean())
    method = kl_term(beta=0.1, target=kl / 2, horizon=30)
    a = torch.zeros(N, dtype=torch.float64)
    method.survey(v, a)
    assert method.objective(v, one(v), a).tolist() == (0.1 * divergence.k3(v.reference - v.current)).tolist()
    method.after(result(applied=False))
    method.after(result(applied=True))  # an update that was not surveyed
    assert method.state_dict() == {"beta": 0.1}
    method.survey(v, a)
    method.after(result(applied=True))
    assert method.state_dict() == {"beta": pytest.approx(0.1 * (1 + 0.2 * 3 / 30))}
    again = kl_term(beta=0.1, target=kl / 2, horizon=30)
    again.load_state_dict(method.state_dict())
    assert again.state_dict() == method.state_dict()


def test_a_fixed_beta_stays_and_asks_for_no_survey() -> None:
    method = kl_reward()
    for _ in range(3):
        method.shape(view())
        method.after(result(applied=True))
    assert method.state_dict() == {"beta": 0.001}
    assert not kl_term().surveys
    adaptive = Chain.resolve([MethodEntry(name="seq_tis"), MethodEntry.model_validate({"name": "kl_term", "target": 0.1})], setting())
    assert adaptive.surveying(Point.OBJECTIVE)


def test_the_rewards_beta_follows_its_target() -> None:
    v = view()
    method = kl_reward(beta=0.1, target=1e-9 + abs(float((v.behavior_N - v.reference).mean())) * 10, horizon=3)
    method.shape(v)
    method.after(result(applied=True))
    assert method.state_dict() == {"beta": pytest.approx(0.1 * 0.8)}


@pytest.mark.parametrize(
    ("name", "options"), [("kl_term", {"beta": 0}), ("kl_reward", {"target": -1}), ("entropy_term", {"coefficient": 0})]
)
def test_bad_options_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(TrimtabError, match="greater than 0"):
        build(name, options)


# ------------------------------------------------------------------------------------------------------------ to the behavior policy


def test_a_kl_to_the_behavior_policy_needs_no_model_and_pulls_back_over_the_staleness() -> None:
    method, v = kl_term(to="behavior", beta=0.5), view()
    assert method.needs is Need.NOTHING
    assert method.reads_ratios
    d = np.asarray(v.behavior_N - v.current.detach())
    loss, slope = gradient(method, v)
    np.testing.assert_allclose(loss, 0.5 * (np.exp(d) - 1 - d), rtol=1e-12)
    np.testing.assert_allclose(slope, 0.5 * (1 - np.exp(d)), rtol=1e-12)


@pytest.mark.parametrize("objective", ["linear", "ppo_clip", "gspo", "cispo", "sapo", "m2po", "topr", "kimi"])
def test_it_composes_with_any_objective(objective: str) -> None:
    correct = ["seq_tis"] if objective == "linear" else []
    names = [*correct, objective, "grpo"]
    entries = [*(MethodEntry(name=n) for n in names), MethodEntry.model_validate({"name": "kl_term", "to": "behavior"})]
    chain = Chain.resolve(entries, setting())
    assert not chain.needs & Need.REFERENCE
    assert [m.name for m in chain.terms] == ["kl_term"]
