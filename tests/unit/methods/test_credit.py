"""Advantages and objectives against NumPy, group by group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from support.views import make_view, notes, ratios, setting
from trimtab.control.chain import Chain
from trimtab.control.protocol import Need, NormCreditMethod, Setting, View, Weighing
from trimtab.control.registry import MethodEntry, build
from trimtab.records import TrimtabError

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
    weight = {"paper": raw**2 * norm2, "repo": raw**2 * cut**2 * norm2, "exact": cut**2 * norm2}[weighting]
    grid = np.linspace(-0.5, 1.5, 200_001)

    def one(r: np.ndarray, g: int) -> np.ndarray:
        chosen = weight[np.array(GROUPS) == g]
        best = grid[np.argmin((chosen[:, None] * (r[:, None] - grid) ** 2).sum(0))]  # the definition, by brute force
        return (r - best) * inverse_std(r, std)

    got = advantage("opob", {"weighting": weighting, "std": std}, v, w)
    np.testing.assert_allclose(got, by_group(one), atol=2e-5 * max(inverse_std(np.array(REWARDS), std), 5.0))


def test_opob_reports_its_baseline_beside_the_mean_of_mixed_groups() -> None:
    v = view()
    w = build("seq_tis", {"c": 2.0}).weigh(v)  # type: ignore[attr-defined]
    advantage("opob", {}, v, w)
    metrics = notes(v).metrics
    _, s_R = ratios(v)
    r, g, lengths = np.array(REWARDS), np.array(GROUPS), np.array(LENGTHS)
    weight = np.exp(s_R) ** 2 * np.array(NORM2)
    contribution = (np.minimum(np.exp(s_R), 2.0) / lengths / len(r)) ** 2 * np.array(NORM2)
    want = dict.fromkeys(("baseline", "group_mean", "max_share", "variance_ratio", "gradient_change"), 0.0)
    for i in (0, 2):
        x, w_i, c_i = r[g == i], weight[g == i], contribution[g == i]
        b, off = np.average(x, weights=w_i), x - x.mean()
        want["baseline"] += b
        want["group_mean"] += x.mean()
        want["max_share"] += w_i.max() / w_i.sum()
        want["variance_ratio"] += (w_i * (x - b) ** 2).sum() / (w_i * off**2).sum()
        want["gradient_change"] += np.sqrt((c_i * (b - x.mean()) ** 2).sum() / (c_i * off**2).sum())
    metrics.pop("seq_tis/truncated")
    assert metrics == {f"opob/{name}": (pytest.approx(x), 2) for name, x in want.items()}


def test_opob_over_the_whole_update_minimizes_its_second_moment() -> None:
    """With a scale per group the second moment weighs by W / std^2; without a scale equal scores count as well."""
    for std in STDS:
        v = view()
        _, s_R = ratios(v)
        r, scale = np.array(REWARDS), by_group(lambda x, _: np.full(len(x), inverse_std(x, std)))  # noqa: B023
        weight = np.exp(s_R) ** 2 * np.array(NORM2) * scale**2
        grid = np.linspace(-0.5, 1.5, 200_001)
        best = grid[np.argmin((weight[:, None] * (r[:, None] - grid) ** 2).sum(0))]
        np.testing.assert_allclose(advantage("opob", {"scope": "batch", "std": std}, v), (r - best) * scale, atol=1e-4 * scale.max())


@pytest.mark.parametrize("weighting", ["paper", "exact"])
def test_opob_by_length_reads_no_norms(weighting: str) -> None:
    v = make_view(REWARDS, GROUPS, LENGTHS)
    w = build("seq_tis", {"c": 2.0}).weigh(v)  # type: ignore[attr-defined]
    _, s_R = ratios(v)
    g, lengths = np.array(GROUPS), np.array(LENGTHS)
    weight = {"paper": np.exp(s_R) ** 2 * lengths, "exact": np.minimum(np.exp(s_R), 2.0) ** 2 / lengths}[weighting]
    want = by_group(lambda x, i: x - np.average(x, weights=weight[g == i]))
    np.testing.assert_allclose(
        advantage("opob", {"norms": "length", "weighting": weighting, "std": "none"}, v, w), want, rtol=1e-10, atol=1e-12
    )
    assert build("opob", {"norms": "length"}).needs == Need.SCORE


def test_opob_aggregations_and_leave_one_out() -> None:
    _, s_R = ratios(view())
    weight, g = np.exp(s_R) ** 2 * np.array(NORM2), np.array(GROUPS)

    def others(x: np.ndarray, i: int) -> np.ndarray:
        w = weight[g == i]
        return np.array([x[j] - np.average(np.delete(x, j), weights=np.delete(w, j)) for j in range(len(x))])

    got = advantage("opob", {"leave_one_out": True, "std": "none"}, view())
    np.testing.assert_allclose(got, by_group(others), rtol=1e-9, atol=1e-12)

    def median(x: np.ndarray, i: int) -> np.ndarray:
        order, w = np.argsort(x, kind="stable"), weight[g == i]
        return x - x[order][np.searchsorted(np.cumsum(w[order]), 0.5 * w.sum())]

    np.testing.assert_allclose(advantage("opob", {"aggregation": "median", "std": "none"}, view()), by_group(median), atol=1e-12)
    with pytest.raises(TrimtabError, match="leave_one_out is a mean of the others; use aggregation = mean"):
        build("opob", {"leave_one_out": True, "aggregation": "median"})


def resolve(*entries: Any, **where: Any) -> Chain:
    return Chain.resolve([MethodEntry(name=e) if isinstance(e, str) else MethodEntry.model_validate(e) for e in entries], setting(**where))


def test_two_buffers_cannot_do_what_differs_by_rollout_or_is_estimated() -> None:
    for options, refused in (
        ({"leave_one_out": True}, "methods.opob.leave_one_out = True: two_buffer cannot form a baseline that differs by rollout"),
        ({"norms": "sketch"}, "methods.opob.norms = 'sketch': two_buffer measures exact norms"),
    ):
        entry = {"name": "opob", **options}
        with pytest.raises(TrimtabError, match=refused):
            resolve("vcpo", entry, norms="two_buffer")
        resolve("vcpo", entry)
    resolve("vcpo", {"name": "opob", "norms": "length"}, norms="two_buffer")


def test_the_chain_says_which_norms_it_wants() -> None:
    assert [resolve("vcpo", {"name": "opob", "norms": n}).norm_estimator for n in ("exact", "sketch", "last_layer", "length")] == [
        "exact",
        "sketch",
        "last_layer",
        "exact",
    ]
    assert resolve("seq_tis").norm_estimator == "exact"


# ---------------------------------------------------------------------------------------------------------------- other baselines


def test_opo_weighs_by_length() -> None:
    lengths, g = np.array(LENGTHS), np.array(GROUPS)
    want = by_group(lambda x, i: x - np.average(x, weights=lengths[g == i]))
    np.testing.assert_allclose(advantage("opo", {}, view()), want, rtol=1e-12, atol=1e-15)
    scaled = by_group(lambda x, i: (x - np.average(x, weights=lengths[g == i])) * inverse_std(x, "group"))
    np.testing.assert_allclose(advantage("opo", {"std": "group"}, view()), scaled, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("std", STDS)
def test_group_min(std: str) -> None:
    np.testing.assert_allclose(advantage("group_min", {"std": std}, view()), by_group(lambda r, _: (r - r.min()) * inverse_std(r, std)))


def test_group_min_is_b0_where_the_worst_reward_is_zero() -> None:
    mixed = make_view([1, 0, 0, 1, 0.5, 0], [0, 0, 0, 1, 1, 1], [2] * 6)
    np.testing.assert_array_equal(advantage("group_min", {}, mixed), advantage("b0", {}, mixed))


def token_rewards(v: View) -> np.ndarray:
    """Step-level rewards at the first token of each rollout of two or more."""
    step = np.zeros(sum(LENGTHS))
    step[np.cumsum(LENGTHS)[np.array(LENGTHS) > 1] - np.array(LENGTHS)[np.array(LENGTHS) > 1]] = 0.25
    v.reward_N = torch.from_numpy(step)
    ends = np.cumsum(LENGTHS)
    rest = np.array(REWARDS) - np.array([step[e - n : e].sum() for n, e in zip(LENGTHS, ends, strict=True)])
    step = step.copy()
    step[ends - 1] += rest
    return np.concatenate([np.cumsum(step[e - n : e][::-1])[::-1] for n, e in zip(LENGTHS, ends, strict=True)])


@pytest.mark.parametrize("baseline", ["none", "group"])
@pytest.mark.parametrize("stepwise", [False, True])
def test_reinforce_pp(baseline: str, stepwise: bool) -> None:
    v = view()
    returns = token_rewards(v) if stepwise else np.repeat(REWARDS, LENGTHS)
    method = build("reinforce_pp", {"baseline": baseline})
    assert method.cadence == "batch"
    credit = method.credit(v, no_weight(v))  # type: ignore[attr-defined]
    x = returns - (np.repeat(by_group(lambda r, _: np.full(len(r), r.mean())), LENGTHS) if baseline == "group" else 0)
    np.testing.assert_allclose(credit.advantage_N, (x - x.mean()) / np.sqrt(x.var(ddof=1) + 1e-8), rtol=1e-10)
    assert credit.advantage_R is None


@pytest.mark.parametrize("stepwise", [False, True])
def test_otb(stepwise: bool) -> None:
    v = view()
    returns = token_rewards(v) if stepwise else np.repeat(REWARDS, LENGTHS)
    p2 = np.random.default_rng(8).random(sum(LENGTHS))
    v.sum_p2_N = torch.from_numpy(p2)
    w = build("seq_tis", {"c": 2.0}).weigh(v)  # type: ignore[attr-defined]
    _, s_R = ratios(v)
    pi = np.exp(v.current.numpy())
    energy = np.repeat(np.minimum(np.exp(s_R), 2.0), LENGTHS) ** 2 * np.maximum(1 - 2 * pi + p2, 0)
    ends = np.cumsum(LENGTHS)
    V = [np.cumsum(energy[e - n : e]) for n, e in zip(LENGTHS, ends, strict=True)]
    G = [returns[e - n : e] for n, e in zip(LENGTHS, ends, strict=True)]
    want = []
    for i, n in enumerate(LENGTHS):
        for t in range(n):
            there = [j for j in range(len(LENGTHS)) if GROUPS[j] == GROUPS[i] and LENGTHS[j] > t]
            want.append(G[i][t] - np.average([G[j][t] for j in there], weights=[V[j][t] for j in there]))
    got = build("otb", {}).credit(v, w).advantage_N  # type: ignore[attr-defined]
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


def test_opob_measures_the_plain_gradient_or_the_true_contribution() -> None:
    v = view()
    w = build("seq_tis", {"c": 2.0}).weigh(v)  # type: ignore[attr-defined]
    for weighting in ("paper", "repo"):
        assert np.all(np.asarray(build("opob", {"weighting": weighting}).unit(v, w)) == 1.0)  # type: ignore[attr-defined]
    contribution = np.repeat(1.0 / np.array(LENGTHS) / len(LENGTHS), LENGTHS)  # the rollout's own weight is added to log W
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
        ("opo", {}, True),
        ("group_min", {"std": "none"}, True),
        ("opob", {"norms": "length"}, True),
        ("opob", {"scope": "batch"}, True),
        ("opob", {"scope": "batch", "std": "population"}, True),
        ("opob", {"scope": "batch", "std": "batch"}, False),
        ("opob", {"scope": "batch", "std": "none"}, False),
    ],
)
def test_silent_says_whether_equal_scores_get_no_credit(name: str, options: dict[str, Any], silent: bool) -> None:
    entry = MethodEntry.model_validate({"name": name, **options})
    c = Chain.resolve([MethodEntry(name="seq_tis"), entry], Setting(group_size=4, asynchronous=True, cut=False, reports_kept=True))
    owner = next(m for m in c.methods if m.name == name)
    assert owner.silent is silent
    v = make_view([1, 1, 1, 0, 1, 1, 1, 1], [0] * 4 + [1] * 4, [2] * 8, norm2=[1.0] * 8)
    equal = owner.credit(v, no_weight(v)).advantage_R[4:]  # type: ignore[attr-defined]
    assert bool((equal.abs() < 1e-12).all()) is silent


def test_only_opob_asks_for_norms() -> None:
    names = ("grpo", "rloo", "reinforce", "b0", "opob", "opo", "group_min", "reinforce_pp", "otb")
    assert [n for n in names if isinstance(build(n, {}), NormCreditMethod)] == ["opob"]


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
