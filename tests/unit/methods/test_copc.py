"""COPC's two channels, what they refuse, and what is left when both are switched off: asynchronous PPO, to the bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from support.fuzz import play
from support.updates import MIXED, make_batch, make_learner, tiny_model
from support.views import make_view, notes, setting
from trimtab import functional as F
from trimtab.control.chain import Chain
from trimtab.control.protocol import View, Weighing
from trimtab.control.registry import MethodEntry, build
from trimtab.records import TrimtabError

LENGTHS = [3, 1, 7, 4, 5, 2]
OFF: list[Any] = [{"name": "copc_credit", "low": 1.0, "high": 1.0}, "ppo_clip"]
UNMASKED = {"name": "copc_mask", "eps_low": None, "eps_high": None, "surrogate": "ppo"}


def view(seed: int = 0, spread: float = 0.8) -> View:
    v = make_view([1, 0, 0, 1, 1, 0], [0, 0, 1, 1, 2, 2], LENGTHS, seed=seed, spread=spread)
    rng = np.random.default_rng(seed + 50)
    n = v.behavior_N.shape[0]
    v.values_N, v.proximal_N = torch.from_numpy(rng.random(n)), v.current.clone()
    v.entropy_N = torch.zeros(n, dtype=torch.float64)
    v.age_N = torch.arange(n) % 9
    return v


def at_ratio(ratio: Sequence[float]) -> View:
    """One rollout whose tokens have exactly these ratios, beside one of a single token."""
    v = make_view([1.0, 0.0], [0, 0], [len(ratio), 1])
    v.behavior_N = torch.zeros_like(v.behavior_N)
    v.current_N = torch.tensor([*ratio, 1.0], dtype=torch.float64).log()
    return v


def chain(*methods: Any) -> Chain:
    return Chain.resolve([MethodEntry(name=m) if isinstance(m, str) else MethodEntry.model_validate(m) for m in methods], setting())


def weigh(v: View, **options: Any) -> Weighing:
    found: Weighing = build("copc_mask", options).weigh(v)  # type: ignore[attr-defined]
    return found


# ------------------------------------------------------------------------------------------------------------------ policy side


def test_the_mask_is_strict_on_both_sides() -> None:
    v = at_ratio([1.3, 0.5, 2.5, 2.0, 1.999, 0.501])
    np.testing.assert_allclose(v.weights(weigh(v)), [1.3, 0, 0, 0, 1.999, 0.501, 1], rtol=1e-12)
    np.testing.assert_allclose(v.weights(weigh(v, surrogate="ppo")), [1, 0, 0, 0, 1, 1, 1])
    np.testing.assert_allclose(v.weights(weigh(v, eps_low=None)), [1.3, 0.5, 0, 0, 1.999, 0.501, 1], rtol=1e-12)
    np.testing.assert_allclose(v.weights(weigh(v, eps_low=0.3, eps_high=5.0)), [1.3, 0, 2.5, 2.0, 1.999, 0, 1], rtol=1e-12)


def test_masked_tokens_stay_in_the_denominator() -> None:
    v = view()
    loss = play(chain({"name": "copc_mask"}, {"name": "copc_credit", "whiten": False}), v)
    advantage_N = F.traces.copc(v.token_reward_N, v.values_N, v.log_ratio_N, v.length_R).advantage_N  # type: ignore[arg-type]
    r_N = np.exp(v.log_ratio_N.numpy())
    w_N = torch.from_numpy(np.where((r_N > 0.5) & (r_N < 2), r_N, 0.0))
    assert 0 < int((w_N == 0).sum()) < len(w_N)
    np.testing.assert_allclose(loss.d_N, -(v.scale_N * w_N * advantage_N), rtol=1e-12, atol=1e-16)


def test_all_masked_is_a_zero_loss_and_a_zero_gradient() -> None:
    v = view()
    v.current_N = v.behavior_N + 3.0
    played = play(chain("copc"), v)
    assert float(played.loss) == 0.0
    assert not played.d_N.any()


def test_a_nan_ratio_is_never_masked() -> None:
    v = view()
    v.current_N = v.current.index_fill(0, torch.tensor([4]), math.nan)
    assert v.weights(weigh(v))[4].isnan()
    assert not play(chain({"name": "copc_mask"}, {"name": "copc_credit"}), v).finite


# ------------------------------------------------------------------------------------------------------------------ advantage side


def test_credit_reads_the_batchs_ratio_and_the_mask_the_updates() -> None:
    v = view()
    c = chain("copc")
    before = play(c, v)
    credit = build("copc_credit", {}).credit(v, None)  # type: ignore[attr-defined]
    v.current_N = v.current + 0.1  # the policy has moved; the proximal one has not
    after = play(c, v)
    moved = build("copc_credit", {}).credit(v, None)  # type: ignore[attr-defined]
    assert torch.equal(credit.advantage_N, moved.advantage_N)
    assert torch.equal(credit.return_N, moved.return_N)
    assert not torch.equal(before.d_N, after.d_N)


def test_the_return_is_weighted_whatever_own_says() -> None:
    v = view()
    found = {own: build("copc_credit", {"own": own, "whiten": False}).credit(v, None) for own in ("exclude", "include")}  # type: ignore[attr-defined]
    assert torch.equal(found["exclude"].return_N, found["include"].return_N)
    gap_N = found["include"].advantage_N - found["exclude"].advantage_N
    kappa_N = v.log_ratio_N.exp().clamp(0.5, 2.0)
    delta_N = F.traces.gae(v.token_reward_N, v.values_N, v.length_R, lam_actor=0.0).advantage_N  # type: ignore[arg-type]
    np.testing.assert_allclose(gap_N, (kappa_N - 1) * delta_N, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["gae", "copc_credit"])
def test_advantages_are_whitened_over_all_action_tokens(name: str) -> None:
    v = view()
    raw = build(name, {"whiten": False}).credit(v, None).advantage_N  # type: ignore[attr-defined]
    white = build(name, {}).credit(v, None).advantage_N  # type: ignore[attr-defined]
    np.testing.assert_allclose(white, (raw - raw.mean()) / np.sqrt(raw.var() + 1e-8), rtol=1e-12)


def test_the_mask_does_not_enter_the_whitening() -> None:
    v, c = view(), chain("copc").learner()
    w = c.weigh(v)
    assert w.keep_N is not None
    assert not w.keep_N.all()
    raw = build("copc_credit", {"whiten": False}).credit(v, w).advantage_N  # type: ignore[attr-defined]
    np.testing.assert_allclose(c.credit(v, w).advantage_N, (raw - raw.mean()) / np.sqrt(raw.var() + 1e-8), rtol=1e-12)  # type: ignore[arg-type]


def test_lambda_grows_with_the_length() -> None:
    v = view()
    lam = np.repeat([max(0.0, 1 - 1 / (1.5 * n)) for n in LENGTHS], LENGTHS)
    found = build("gae", {"alpha": 1.5, "whiten": False}).credit(v, None)  # type: ignore[attr-defined]
    first = 0
    for n in LENGTHS:
        want = F.traces.gae(
            v.token_reward_N[first : first + n],
            v.values_N[first : first + n],
            torch.tensor([n]),
            lam_actor=float(lam[first]),  # type: ignore[index]
        )
        assert torch.equal(found.advantage_N[first : first + n], want.advantage_N)
        first += n


# ------------------------------------------------------------------------------------------------------------------ metrics


def test_what_both_sides_report_by_age() -> None:
    v = view(spread=1.2)
    weigh(v)
    credit = build("copc_credit", {"whiten": False}).credit(v, None)  # type: ignore[attr-defined]
    found = {name: n / d for name, (n, d) in notes(v).metrics.items()}
    r, age = np.exp(v.log_ratio_N.numpy()), v.age_N.numpy()
    full = F.traces.copc(v.token_reward_N, v.values_N, v.log_ratio_N, v.length_R).full_N  # type: ignore[arg-type]
    value, returns = np.asarray(v.values_N), np.asarray(credit.return_N)
    for where, here in (("", age >= 0), ("/age_0", age == 0), ("/age_3-4", (age == 3) | (age == 4)), ("/age_5-8", age >= 5)):
        x, gone = r[here], (r[here] <= 0.5) | (r[here] >= 2)
        want = {
            "masked_low": np.mean(x <= 0.5),
            "masked_high": np.mean(x >= 2),
            "k3": np.mean(x - 1 - np.log(x)),
            "weight": np.mean(x * ~gone),
            "weight_squared": np.mean((x * ~gone) ** 2),
            "proxy_weight_gap": np.mean(x * gone),
            "proxy_mass_removed": np.sum(x * gone) / np.sum(x),
            "kappa_low": np.mean(x < 0.5),
            "kappa_high": np.mean(x > 2),
            "kappa_distance": np.mean(np.abs(np.clip(x, 0.5, 2) - 1)),
            "proxy_trace_gap": np.abs(np.asarray(credit.advantage_N - full))[here].mean(),
            "proxy_trace_overflow": 0.0,
            "explained_variance": 1 - (returns - value)[here].var() / returns[here].var(),
        }
        for name, number in want.items():
            assert found[f"copc/{name}{where}"] == pytest.approx(number, rel=1e-9, abs=1e-12), (name, where)


def test_the_trace_proxy_leaves_out_what_overflows() -> None:
    n = 200
    v = make_view([1.0, 0.0], [0, 0], [n, 1])
    v.current_N = v.proximal_N = v.behavior_N + 5e3
    v.values_N = torch.zeros(n + 1, dtype=torch.float64)
    build("copc_credit", {}).credit(v, None)  # type: ignore[attr-defined]
    found = notes(v).metrics
    assert found["copc/proxy_trace_overflow"][0] > 0
    assert all(math.isfinite(x) for pair in found.values() for x in pair)


# ------------------------------------------------------------------------------------------------------------------ composition


def test_the_bundles() -> None:
    names = {bundle: [m.name for m in chain(bundle).methods] for bundle in ("async_ppo", "copc", "impala")}
    assert names == {
        "async_ppo": ["gae", "ppo_clip", "norm_clip"],
        "copc": ["copc_mask", "copc_credit", "linear", "norm_clip"],
        "impala": ["tok_tis", "vtrace", "linear", "norm_clip"],
    }


@pytest.mark.parametrize(
    ("methods", "says"),
    [
        ([{"name": "copc_mask", "surrogate": "ppo"}, "copc_credit", "linear"], "linear has no ratio of its own"),
        ([{"name": "copc_mask", "surrogate": "ppo"}, "copc_credit", "ppo_decoupled"], 'own = "include"'),
        (["copc_mask", "copc_credit", "ppo_clip"], "both correct"),
        (["copc_mask", "tok_tis"], "both correct"),
        (["gae", "copc_credit", "tok_tis"], "own the credit point"),
        (["copc_credit"], "nothing corrects for stale rollouts"),
    ],
)
def test_contradictions_are_refused(methods: list[Any], says: str) -> None:
    with pytest.raises(TrimtabError, match=says):
        chain(*methods)


@pytest.mark.parametrize("option", [{"low": 1.1}, {"high": 0.9}, {"own": "both"}, {"c_bar": 0.0}, {"lam_actor": 1.1}])
def test_options_out_of_range_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(TrimtabError, match=f"methods.copc_credit.{next(iter(option))}"):
        build("copc_credit", option)


def test_what_is_dubious_is_said() -> None:
    include = {"name": "copc_credit", "own": "include"}
    assert "twice" in " ".join(chain({"name": "copc_mask", "surrogate": "ppo"}, include, "ppo_clip").said)
    assert "twice" not in " ".join(chain({"name": "copc_mask", "surrogate": "ppo"}, include, "ppo_decoupled").said)
    assert "contract" in " ".join(chain("copc_mask", {"name": "copc_credit", "c_bar": 1.0}).said)
    assert "contract" not in " ".join(chain("copc_mask", {"name": "copc_credit", "c_bar": 1.0, "high": 1.007}).said)


@pytest.mark.parametrize("methods", [OFF, [UNMASKED, *OFF]])
@pytest.mark.parametrize("seed", range(3))
def test_switched_off_it_is_asynchronous_ppo_to_the_bit(methods: list[Any], seed: int) -> None:
    want, found = play(chain("async_ppo"), view(seed)), play(chain(*methods), view(seed))
    assert torch.equal(want.loss, found.loss)
    assert torch.equal(want.d_N, found.d_N)


@pytest.mark.parametrize("methods", [OFF, [UNMASKED, *OFF]])
def test_switched_off_whole_updates_are_asynchronous_ppo_to_the_bit(methods: list[Any]) -> None:
    model = tiny_model(torch.float32)
    options: dict[str, Any] = {"updates_per_batch": 2, "epochs": 2, "critic": {"updates": 2, "optimizer": {"lr": 0.01}}}
    weights = []
    for chosen in (["async_ppo"], methods):
        learner, _ = make_learner(model, chosen, **options)
        for number in range(2):
            results = learner.train(make_batch(model, MIXED, seed=number, number=number))
            assert all(r.applied for r in results)
        weights.append([p.detach().clone() for p in learner.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    other, _ = make_learner(model, ["copc"], **options)
    for number in range(2):
        other.train(make_batch(model, MIXED, seed=number, number=number))
    assert not all(torch.equal(a, b) for a, b in zip(weights[0], other.model.parameters(), strict=True))
