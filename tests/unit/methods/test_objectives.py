"""The competitors' objectives at their control point: what they read, what they note, which chains they fit in."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.views import make_view, notes, ratios, setting
from trimtab.control.chain import Chain
from trimtab.control.protocol import Method, Need, Notes, Ratio, Reduction, SurveyMethod, View, Weighing
from trimtab.control.registry import MethodEntry, build
from trimtab.records import TrimtabError

LENGTHS = [3, 1, 7, 4, 5, 2]
N = sum(LENGTHS)
A_R = np.array([1.0, -1.0, 0.5, -0.5, 2.0, -2.0])
A_N = np.repeat(A_R, LENGTHS)

ANCHORED = {  # on the behavior policy
    "ppo_clip": {},
    "gspo": {},
    "cispo": {},
    "m2po": {},
    "bapo": {},
    "sapo": {},
    "dppo": {},
    "topr": {},
    "opsm": {},
}
OBJECTIVES = [*ANCHORED, "ppo_decoupled", "opmd", "kimi"]


def view(seed: int = 0, spread: float = 0.5) -> View:
    v = make_view([1, 0, 0, 1, 1, 0], [0, 0, 1, 1, 2, 2], LENGTHS, seed=seed, spread=spread)
    rng = np.random.default_rng(seed + 100)
    v.proximal_N = v.behavior_N + torch.from_numpy(0.1 * rng.normal(size=N))
    v.age_N = torch.from_numpy(rng.integers(0, 6, N))
    return v


def one(v: View) -> Weighing:
    return Weighing(torch.zeros(len(v.score_R), dtype=torch.float64))


def gradient(method: Method, v: View, w: Weighing | None = None, a_N: np.ndarray = A_N) -> tuple[np.ndarray, np.ndarray]:
    """(loss_N, its derivative), after the survey where there is one."""
    advantage_N = torch.from_numpy(a_N)
    if isinstance(method, SurveyMethod):
        method.survey(v, advantage_N)
    leaf = v.current.detach().clone().requires_grad_()
    loss_N: Tensor = method.objective(dataclasses.replace(v, current_N=leaf), w or one(v), advantage_N)  # type: ignore[attr-defined]
    return loss_N.detach().numpy(), torch.autograd.grad(loss_N.sum(), leaf)[0].numpy()


def chain(*entries: str | dict[str, Any], **changes: Any) -> Chain:
    return Chain.resolve([MethodEntry.model_validate({"name": e} if isinstance(e, str) else e) for e in entries], setting(**changes))


# -------------------------------------------------------------------------------------------------------------------- golden


def ppo(d: np.ndarray, low: float, high: float) -> np.ndarray:
    """PPO's derivative."""
    r = np.exp(d)
    return np.where(np.where(A_N > 0, r > 1 + high, r < 1 - low), 0.0, -A_N * r)


def by_rollout(x_R: np.ndarray) -> np.ndarray:
    return np.repeat(x_R, LENGTHS)


def harmful_range(d: np.ndarray) -> tuple[float, float]:
    """M2PO's widths, token by token, as released."""
    squares = sorted(x * x for x, a in zip(d, A_N, strict=True) if (a > 0 and x > 0) or (a < 0 and x < 0))
    t2 = 0.0
    for i, square in enumerate(squares):
        if sum(squares[:i]) + square * (len(squares) - i) > 0.04 * len(squares):
            break
        t2 = square
    else:
        return 1.0, math.inf
    t = math.sqrt(t2)
    return max(1 - math.exp(-t), 0.3), max(math.exp(t) - 1, 0.5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [n for n in OBJECTIVES if n not in ("bapo", "dppo")])
def test_the_derivative_by_hand(name: str, seed: int) -> None:
    v = view(seed)
    d, s_R = ratios(v)
    mean = by_rollout(s_R / LENGTHS)
    r = np.exp(d)
    gate = 1 / (1 + np.exp(-np.where(A_N > 0, 1.0, 1.05) * (r - 1)))
    want = {
        "ppo_clip": lambda: ppo(d, 0.2, 0.2),
        "gspo": lambda: ppo(mean, 3e-4, 4e-4),
        "cispo": lambda: -A_N * np.minimum(r, 5.0),
        "m2po": lambda: ppo(d, *harmful_range(d)),
        "sapo": lambda: -A_N * 4 * gate * (1 - gate) * r,
        "topr": lambda: -A_N * np.where(A_N > 0, 1.0, np.minimum(np.exp(by_rollout(s_R)), 1.0)),
        "opsm": lambda: np.where((A_N < 0) & (-mean > 0.5), 0.0, ppo(d, 0.2, 0.2)),
        "ppo_decoupled": lambda: ppo((v.current - v.proximal).numpy(), 0.2, 0.2),
        "opmd": lambda: -A_N / 2.0,
        "kimi": lambda: -A_N + 0.1 * d,
    }[name]()
    np.testing.assert_allclose(gradient(build(name, {}), v)[1], want, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_weights_and_masks_multiply(name: str) -> None:
    v = view()
    _, plain = gradient(build(name, {}), v)
    keep_N = torch.arange(N) % 3 != 0
    w = Weighing(torch.full((6,), math.log(2.0), dtype=torch.float64), torch.linspace(0.5, 2, N, dtype=torch.float64), keep_N)
    loss, got = gradient(build(name, {}), v, w)
    np.testing.assert_allclose(got, plain * v.weights(w).numpy(), rtol=1e-12, atol=1e-15)
    assert (loss[~keep_N.numpy()] == 0).all()
    assert (loss[keep_N.numpy()] != 0).any()


@pytest.mark.parametrize("name", [n for n in OBJECTIVES if n != "opmd"])
def test_on_policy_every_objective_is_the_policy_gradient(name: str) -> None:
    v = view(spread=0.0)
    v.proximal_N = v.behavior_N
    np.testing.assert_allclose(gradient(build(name, {}), v)[1], -A_N, rtol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([-1e4, -30.0, -1.0, 0.0, 1e-3, 2.0, 50.0, 1e4]), min_size=N, max_size=N))
def test_any_log_ratio_gives_a_finite_loss_and_gradient(d: list[float]) -> None:
    v = view()
    v.current_N = v.behavior_N + torch.tensor(d, dtype=torch.float64)
    for name in OBJECTIVES:
        for anchor in [{}, {"anchor": "a3po"}] if name == "ppo_decoupled" else [{}]:
            loss, got = gradient(build(name, anchor), v)
            assert np.isfinite(loss).all(), name
            assert np.isfinite(got).all(), name


@pytest.mark.parametrize("name", OBJECTIVES)
def test_nothing_to_train_on_is_no_loss(name: str) -> None:
    v = make_view([0.0, 1.0], [0, 0], [0, 0], norm2=None)
    v.proximal_N = v.behavior_N
    loss, got = gradient(build(name, {}), v, a_N=np.zeros(0))
    assert loss.shape == got.shape == (0,)


# ------------------------------------------------------------------------------------------------------------------ one by one


@pytest.mark.parametrize(("name", "hit"), [("ppo_clip", 0.2), ("ppo_decoupled", 0.2), ("opsm", 0.2)])
def test_clipped_tokens_are_counted(name: str, hit: float) -> None:
    v = view(spread=0.4)
    d = (v.current - (v.proximal if name == "ppo_decoupled" else v.behavior_N)).numpy()
    gradient(build(name, {}), v)
    outside = np.where(A_N > 0, np.exp(d) > 1 + hit, np.exp(d) < 1 - hit).sum()
    assert 0 < outside < N
    assert notes(v).metrics[f"{name}/clipped"] == (outside, N)


def test_dual_clip_stops_the_bad_token_that_has_become_likely() -> None:
    v = view()
    v.current_N = v.behavior_N + 2.0
    _, got = gradient(build("ppo_clip", {"dual": 3.0}), v)
    assert (got[A_N < 0] == 0).all()
    _, without = gradient(build("ppo_clip", {}), v)
    np.testing.assert_allclose(without[A_N < 0], -A_N[A_N < 0] * math.exp(2.0))


def test_the_proximal_policy_between_behavior_and_current() -> None:
    """log u = (log pi - log mu) / age: 1/5 of the way for version 4 under a learner of version 9."""
    v = view()
    v.age_N = torch.tensor([5] * 10 + [1] * 6 + [0] * 6)
    d = (v.current - v.behavior_N).numpy()
    u = np.concatenate([d[:10] / 5, d[10:16], np.zeros(6)])
    np.testing.assert_allclose(gradient(build("ppo_decoupled", {"anchor": "a3po"}), v)[1], ppo(u, 0.2, 0.2), rtol=1e-9)


def test_decoupled_ppo_is_a_weight_and_a_clip_that_agree() -> None:
    c = chain("decoupled_ppo")
    assert [m.name for m in c.methods] == ["decoupled", "grpo", "ppo_decoupled", "norm_clip"]
    assert Need.PROXIMAL in c.needs
    a3po = chain({"name": "decoupled", "anchor": "a3po"}, {"name": "ppo_decoupled", "anchor": "a3po"})
    assert Need.PROXIMAL not in a3po.needs
    with pytest.raises(TrimtabError, match="anchor"):
        chain("decoupled", {"name": "ppo_decoupled", "anchor": "a3po"})
    with pytest.raises(TrimtabError, match="nothing corrects for stale rollouts"):
        chain("ppo_decoupled")


def test_the_chain_of_decoupled_ppo_weighs_the_clipped_loss() -> None:
    v = view(spread=0.2)
    c = chain("decoupled", "ppo_decoupled")
    w = c.learner().weigh(v)
    mu, prox = v.behavior_N.numpy(), v.proximal.numpy()
    _, got = gradient(c.objective_owner, v, w)
    np.testing.assert_allclose(got, np.exp(prox - mu) * ppo((v.current - v.proximal).numpy(), 0.2, 0.2), rtol=1e-11, atol=1e-14)


def test_the_dapo_bundle() -> None:
    c = chain("dapo")
    assert [m.name for m in c.methods] == ["dynamic_sampling", "overlong", "grpo", "ppo_clip", "norm_clip"]
    assert c.methods[3].options.model_dump() == {"low": 0.2, "high": 0.28, "dual": None}


@pytest.mark.parametrize(("name", "needed"), [("dr_grpo", "seq_mean_token_sum_norm"), ("gspo", "seq_mean_token_mean")])
def test_a_reduction_that_the_method_insists_on(name: str, needed: str) -> None:
    others = [r for r in Reduction if r.value != needed]
    listed = ["seq_tis", name] if name == "dr_grpo" else [name]
    assert chain(*listed, reduction=Reduction(needed))
    for other in others:
        with pytest.raises(TrimtabError, match=needed):
            chain(*listed, reduction=other)


def test_gspo_counts_clipped_rollouts() -> None:
    v = view()
    gradient(build("gspo", {"low": 0.1, "high": 0.1}), v)
    s = np.exp(ratios(v)[1] / LENGTHS)
    outside = np.where(A_R > 0, s > 1.1, s < 0.9).sum()
    assert 0 < outside < 6
    assert notes(v).metrics == {"gspo/clipped": (outside, 6)}


def test_dppo_thresholds_are_those_of_its_divergence() -> None:
    v = view(spread=1.0)
    p, q = np.exp(v.behavior_N.numpy()), np.exp(np.minimum(v.current.numpy(), -1e-3))
    v.current_N = torch.from_numpy(np.log(q))
    kl = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    tv = np.abs(p - q)
    outward = np.where(A_N > 0, q > p, q < p)
    cut = {"tv": (tv > 0.15) & outward, "kl": (kl > 0.05) & outward}
    assert (cut["tv"] != cut["kl"]).any()
    for divergence, dropped in cut.items():
        _, got = gradient(build("dppo", {"divergence": divergence}), v)
        np.testing.assert_allclose(got, np.where(dropped, 0.0, -A_N * np.minimum(q / p, 20.0)), rtol=1e-10, atol=1e-14)
    _, got = gradient(build("dppo", {"low": 5.0, "high": 5.0, "cap": 1.5}), v)
    np.testing.assert_allclose(got, -A_N * np.minimum(q / p, 1.5), rtol=1e-10)


def parts(v: View) -> list[View]:
    """Micro-batches of three rollouts each."""
    first = sum(LENGTHS[:3])
    out = []
    for tokens, rollouts in ((slice(0, first), slice(0, 3)), (slice(first, N), slice(3, 6))):
        columns = {k: x[tokens if k.endswith("_N") else rollouts] for k, x in vars(v).items() if k.endswith(("_N", "_R")) and x is not None}
        columns["rollout_N"] = columns["rollout_N"] - columns["rollout_N"].min()
        out.append(dataclasses.replace(v, **columns))
    return out


@pytest.mark.parametrize("name", ["m2po", "bapo"])
def test_a_range_is_that_of_the_whole_update_whatever_the_split(name: str) -> None:
    v = view(spread=1.5)
    method = build(name, {})
    _, whole = gradient(method, v, a_N=A_N - 0.8)
    got = []
    for part, a in zip(parts(v), np.split(A_N - 0.8, [sum(LENGTHS[:3])]), strict=True):
        leaf = part.current.clone().requires_grad_()
        loss = method.objective(dataclasses.replace(part, current_N=leaf), one(part), torch.from_numpy(a))  # type: ignore[attr-defined]
        got.append(torch.autograd.grad(loss.sum(), leaf)[0].numpy())
    np.testing.assert_array_equal(np.concatenate(got), whole)


def test_m2po_says_when_it_clips_and_why() -> None:
    v = view(spread=1.5)
    gradient(build("m2po", {}), v)
    (decision,) = notes(v).decisions
    assert (decision.method, decision.point, decision.what) == ("m2po", "objective", "clip range")
    assert decision.amount >= 1.5
    quiet = view(spread=0.01)
    _, got = gradient(build("m2po", {}), quiet)
    assert notes(quiet).decisions == []
    np.testing.assert_allclose(got, -A_N * np.exp(ratios(quiet)[0]))  # nothing clipped


def test_m2po_floors() -> None:
    v = view(spread=0.4)
    d, _ = ratios(v)
    narrow = {"floor_low": 0.0, "floor_high": 0.0, "solve": "exact"}
    _, got = gradient(build("m2po", narrow), v)
    harmful = ((A_N > 0) & (d > 0)) | ((A_N < 0) & (d < 0))
    t = np.abs(d[harmful & (got != 0)]).max()
    assert np.mean(np.minimum(d[harmful] ** 2, t**2)) <= 0.04
    assert (got[~harmful] != 0).all()
    _, wide = gradient(build("m2po", {}), v)
    assert set(np.flatnonzero(got)) < set(np.flatnonzero(wide))


def test_bapo_opens_the_range_for_good_tokens_and_says_so() -> None:
    v = view(spread=1.0)
    pessimist = np.where(A_N > 0, 0.1, -2.0)
    _, got = gradient(build("bapo", {}), v, a_N=pessimist)
    r = np.exp(ratios(v)[0])
    assert notes(v).metrics["bapo/low"] == (pytest.approx(0.9), 1.0)
    assert notes(v).metrics["bapo/high"] == (pytest.approx(3.0), 1.0)
    assert [d.what for d in notes(v).decisions] == ["clip range"]
    np.testing.assert_allclose(got, np.where(np.where(pessimist > 0, r > 3.0, r < 0.9), 0.0, -pessimist * r), rtol=1e-12)
    optimist = view()
    gradient(build("bapo", {}), optimist, a_N=np.abs(A_N))
    assert notes(optimist).decisions == []


def test_opsm_counts_what_it_masks_and_leaves_good_rollouts() -> None:
    v = view(spread=0.1)
    v.current_N = v.behavior_N - 1.0
    _, got = gradient(build("opsm", {}), v)
    assert (got[A_N < 0] == 0).all()
    np.testing.assert_allclose(got[A_N > 0], -A_N[A_N > 0] * math.exp(-1.0))
    assert notes(v).metrics["opsm/masked"] == ((A_N < 0).sum(), N)


# ------------------------------------------------------------------------------------------------------------------ OPMD, Dr.GRPO


def test_opmd_credit() -> None:
    rewards = [1, 0, 0, 1, 1, 0, 0, 0, 2, 2]
    v = make_view(rewards, [0] * 8 + [1] * 2, [1] * 10)
    credit = lambda **o: build("opmd", o).credit(v, one(v)).advantage_R.numpy()  # type: ignore[attr-defined]  # noqa: E731
    np.testing.assert_allclose(credit()[:8], np.array(rewards[:8]) - 0.375)
    b = np.array(rewards[:8]) - credit(baseline="logavgexp")[:8]
    assert [f"{x:.6f}" for x in set(b.round(9))] == ["0.497349"]
    np.testing.assert_allclose(
        credit(baseline="logavgexp", tau=0.5)[:8], rewards[:8] - 0.5 * np.log(np.mean(np.exp(np.array(rewards[:8]) / 0.5))), rtol=1e-12
    )
    for options in ({}, {"baseline": "logavgexp", "tau": 0.3}):
        assert (credit(**options)[8:] == 0).all()  # silent: exactly zero, or the group would need a backward
    assert np.isfinite(credit(baseline="logavgexp", tau=1e-4)).all()


def test_opmd_owns_both_points_and_needs_no_other_correction() -> None:
    c = chain("opmd")
    assert [m.name for m in c.methods] == ["opmd", "norm_clip"]
    with pytest.raises(TrimtabError, match="stale"):
        chain("opmd", "seq_tis")
    with pytest.raises(TrimtabError, match="own the credit point"):
        chain("opmd", "rloo")


def test_dr_grpo_credit() -> None:
    v = make_view([1, 0, 0, 1, 1, 0, 0, 0], [0] * 8, [2] * 8)
    got = build("dr_grpo", {}).credit(v, one(v)).advantage_R.tolist()  # type: ignore[attr-defined]
    assert got == [0.625, -0.375, -0.375, 0.625, 0.625, -0.375, -0.375, -0.375]


# ------------------------------------------------------------------------------------------------------------------ composition


@pytest.mark.parametrize("name", ANCHORED)
def test_an_objective_that_corrects_is_enough_and_a_second_correction_is_refused(name: str) -> None:
    method = build(name, {})
    assert method.corrects == {Ratio.CURRENT_BEHAVIOR}
    assert chain(name)
    with pytest.raises(TrimtabError, match="keep one of them"):
        chain(name, "seq_tis")


@pytest.mark.parametrize("name", [n for n in OBJECTIVES if n not in ("opmd", "kimi", "ppo_decoupled")])
def test_opob_is_refused_where_the_objective_is_not_linear(name: str) -> None:
    with pytest.raises(TrimtabError, match="not"):
        chain("opob", name)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("cispo", {"low": 5.0}, "below high"),
        ("bapo", {"low": 0.95}, "cannot end below"),
        ("m2po", {"budget": 0.0}, "greater than 0"),
        ("dppo", {"divergence": "js"}, "'tv' or 'kl'"),
        ("ppo_clip", {"dual": 1.0}, "greater than 1"),
        ("gspo", {"eps": 0.1}, "options of gspo: low, high"),
    ],
)
def test_bad_options_are_one_sentence(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(TrimtabError, match=said):
        build(name, options)


def test_metrics_go_to_the_recorder_of_the_view() -> None:
    v = view()
    for name in OBJECTIVES:
        gradient(build(name, {}), v)
    assert isinstance(v.recorder, Notes)
    assert {key.partition("/")[0] for key in notes(v).metrics} == {*OBJECTIVES} - {"sapo", "topr", "opmd", "kimi"}
