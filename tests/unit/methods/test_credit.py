"""Advantages and objectives against NumPy, group by group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from support.views import make_view, notes, ratios
from trimtab.methods.chain import Chain, Setting
from trimtab.methods.protocol import Need, View, Weighing
from trimtab.methods.registry import Entry, build

REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.25, 0.5, 1.0, 1.0]
GROUPS = [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
LENGTHS = [3, 1, 7, 4, 5, 2, 2, 3, 6, 1]
NORM2 = [2.0, 0.5, 7.0, 1.0, 4.0, 3.0, 0.1, 9.0, 2.0, 1.0]


def view(**changes: Any) -> View:
    return make_view(REWARDS, GROUPS, LENGTHS, norm2=NORM2, **changes)


def no_weight(v: View) -> Weighing:
    return Weighing(v.score_R.new_zeros(v.score_R.shape[0]))


def advantage(name: str, options: dict[str, Any], v: View, w: Weighing | None = None) -> np.ndarray:
    credit = build(name, options).credit(v, w or no_weight(v))  # type: ignore[attr-defined]
    assert credit.advantage_N is None
    return np.asarray(credit.advantage_R)


def by_group(f: Any) -> np.ndarray:
    r, g = np.array(REWARDS), np.array(GROUPS)
    return np.concatenate([f(r[g == i], i) for i in range(3)])


def inverse_std(r: np.ndarray, std: str) -> float:
    if std == "none":
        return 1.0
    values, ddof, eps = {"group": (r, 1, 1e-6), "population": (r, 0, 0.0), "batch": (np.array(REWARDS), 1, 1e-6)}[std]
    spread = values.std(ddof=ddof)
    return 0.0 if spread <= 1e-8 else 1.0 / (spread + eps)


STDS = ["group", "population", "batch", "none"]


@pytest.mark.parametrize("std", STDS)
def test_grpo(std: str) -> None:
    want = by_group(lambda r, _: (r - r.mean()) * inverse_std(r, std))
    np.testing.assert_allclose(advantage("grpo", {"std": std}, view()), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("std", STDS)
def test_b0(std: str) -> None:
    np.testing.assert_allclose(advantage("b0", {"std": std}, view()), by_group(lambda r, _: r * inverse_std(r, std)), rtol=1e-12)


def test_rloo_is_the_mean_of_the_others() -> None:
    want = by_group(lambda r, _: np.array([r[i] - np.delete(r, i).mean() for i in range(len(r))]))
    np.testing.assert_allclose(advantage("rloo", {}, view()), want, rtol=1e-12, atol=1e-12)


def test_reinforce() -> None:
    np.testing.assert_allclose(advantage("reinforce", {}, view()), REWARDS)
    np.testing.assert_allclose(advantage("reinforce", {"baseline": 0.3}, view()), np.array(REWARDS) - 0.3)


@pytest.mark.parametrize("weighting", ["paper", "repo", "exact"])
@pytest.mark.parametrize("std", STDS)
def test_opob_minimizes_the_second_moment_of_its_group(weighting: str, std: str) -> None:
    v = view()
    _, s_R = ratios(v)
    w = build("seq_tis", {"c": 2.0}).weigh(v)  # type: ignore[attr-defined]
    raw, cut, norm2 = np.exp(s_R), np.minimum(np.exp(s_R), 2.0), np.array(NORM2)
    weight = {"paper": raw**2 * norm2, "repo": raw**2 * cut**2 * norm2, "exact": norm2}[weighting]
    grid = np.linspace(-0.5, 1.5, 200_001)

    def one(r: np.ndarray, g: int) -> np.ndarray:
        chosen = weight[np.array(GROUPS) == g]
        best = grid[np.argmin((chosen[:, None] * (r[:, None] - grid) ** 2).sum(0))]  # the definition, by brute force
        return (r - best) * inverse_std(r, std)

    got = advantage("opob", {"weighting": weighting, "std": std}, v, w)
    np.testing.assert_allclose(got, by_group(one), atol=2e-5 * max(inverse_std(np.array(REWARDS), std), 5.0))


def test_opob_reports_its_baseline_beside_the_mean_of_mixed_groups() -> None:
    v = view()
    advantage("opob", {}, v)
    metrics = notes(v).metrics
    _, s_R = ratios(v)
    weight, r, g = np.exp(s_R) ** 2 * np.array(NORM2), np.array(REWARDS), np.array(GROUPS)
    best = [np.average(r[g == i], weights=weight[g == i]) for i in (0, 2)]
    means = [r[g == i].mean() for i in (0, 2)]
    share = [weight[g == i].max() / weight[g == i].sum() for i in (0, 2)]
    moment = [np.average((r[g == i] - b) ** 2, weights=weight[g == i]) for i, b in ((0, best[0]), (2, best[1]))]
    around = [np.average((r[g == i] - m) ** 2, weights=weight[g == i]) for i, m in ((0, means[0]), (2, means[1]))]
    want = {
        "opob/baseline": (sum(best), 2),
        "opob/group_mean": (sum(means), 2),
        "opob/max_share": (sum(share), 2),
        "opob/variance_ratio": (moment[0] / around[0] + moment[1] / around[1], 2),
    }
    assert metrics == {k: pytest.approx(n) for k, n in want.items()}


def test_opob_measures_the_plain_gradient_or_the_true_contribution() -> None:
    v = view()
    w = build("seq_tis", {"c": 2.0}).weigh(v)  # type: ignore[attr-defined]
    for weighting in ("paper", "repo"):
        assert np.all(np.asarray(build("opob", {"weighting": weighting}).unit(v, w)) == 1.0)  # type: ignore[attr-defined]
    _, s_R = ratios(v)
    contribution = np.repeat(np.minimum(np.exp(s_R), 2.0) / np.array(LENGTHS) / len(LENGTHS), LENGTHS)
    np.testing.assert_allclose(build("opob", {"weighting": "exact"}).unit(v, w), contribution, rtol=1e-12)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "options", "silent"),
    [
        ("grpo", {}, True),
        ("grpo", {"std": "batch"}, True),
        ("rloo", {}, True),
        ("opob", {}, True),
        ("b0", {}, True),
        ("b0", {"std": "population"}, True),
        ("b0", {"std": "batch"}, False),
        ("b0", {"std": "none"}, False),
        ("reinforce", {}, False),
    ],
)
def test_silent_says_whether_equal_scores_get_no_credit(name: str, options: dict[str, Any], silent: bool) -> None:
    entry = Entry.model_validate({"name": name, **options})
    c = Chain.resolve([Entry(name="seq_tis"), entry], Setting(group_size=4, asynchronous=True, cut=False, reports_kept=True))
    owner = next(m for m in c.methods if m.name == name)
    assert owner.silent is silent
    v = make_view([1, 1, 1, 0, 1, 1, 1, 1], [0] * 4 + [1] * 4, [2] * 8, norm2=[1.0] * 8)
    equal = owner.credit(v, no_weight(v)).advantage_R[4:]  # type: ignore[attr-defined]
    assert bool((equal.abs() < 1e-12).all()) is silent


def test_only_opob_asks_for_norms() -> None:
    assert [n for n in ("grpo", "rloo", "reinforce", "b0", "opob") if Need.SEQ_NORMS in build(n, {}).needs] == ["opob"]


# ------------------------------------------------------------------------------------------------------------------ objectives


def differentiated(name: str, options: dict[str, Any], v: View, w: Weighing, a_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(loss_N, d loss / d current_N)."""
    assert v.current_N is not None
    v.current_N = v.current_N.clone().requires_grad_()
    loss_N = build(name, options).objective(v, w, v.token(torch.from_numpy(a_R)))  # type: ignore[attr-defined]
    (gradient,) = torch.autograd.grad(loss_N.sum(), v.current_N)
    return loss_N.detach().numpy(), gradient.numpy()


def test_linear() -> None:
    v = view()
    w = build("seq_mis", {"high": 4.0}).weigh(v)  # type: ignore[attr-defined]
    _, s_R = ratios(v)
    a_R = np.random.default_rng(3).normal(size=len(REWARDS))
    weight = np.repeat(np.where(np.exp(s_R) <= 4.0, np.exp(s_R), 0.0), LENGTHS)
    current = v.current.numpy()
    loss, gradient = differentiated("linear", {}, v, w, a_R)
    np.testing.assert_allclose(loss, -weight * np.repeat(a_R, LENGTHS) * current, rtol=1e-12)
    np.testing.assert_allclose(gradient, -weight * np.repeat(a_R, LENGTHS), rtol=1e-12)


@pytest.mark.parametrize("options", [{}, {"low": 0.1, "high": 0.5}, {"dual": 1.5}])
def test_ppo_clip(options: dict[str, Any]) -> None:
    v = view()
    s_N, _ = ratios(v)
    a_R = np.random.default_rng(3).normal(size=len(REWARDS))
    r, a = np.exp(s_N), np.repeat(a_R, LENGTHS)
    low, high, dual = options.get("low", 0.2), options.get("high", 0.2), options.get("dual")
    plain, clipped = -r * a, -np.clip(r, 1 - low, 1 + high) * a
    want = np.maximum(plain, clipped)
    slope = np.where(plain >= clipped, -r * a, 0.0)  # d r / d current = r; the clipped branch is flat outside the band
    slope = np.where((r >= 1 - low) & (r <= 1 + high), -r * a, slope)
    if dual is not None:
        capped = (a < 0) & (want > -a * dual)
        want, slope = np.where(capped, -a * dual, want), np.where(capped, 0.0, slope)
    loss, gradient = differentiated("ppo_clip", options, v, no_weight(v), a_R)
    np.testing.assert_allclose(loss, want, rtol=1e-10)
    np.testing.assert_allclose(gradient, slope, rtol=1e-10)
    outside = ((r > 1 + high) & (a > 0)) | ((r < 1 - low) & (a < 0))
    assert notes(v).metrics["ppo_clip/clipped"] == (outside.sum(), len(r))
