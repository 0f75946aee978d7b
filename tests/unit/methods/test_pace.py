"""PACE: the controller, the percentile weight, the ranking, and what is committed when."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.pool_chain import pool_chain
from support.pools import Member, Queue, pool_view
from trimtab.control.pool_chain import PoolChain
from trimtab.control.protocol import Notes, PoolView, Rescoring, Selection
from trimtab.control.registry import build
from trimtab.control.rejection import TIE, RejectionBudget, RejectionOptions, largest, quantile
from trimtab.methods.pace import RING, Pace, PaceOptions, effective_staleness, percentile
from trimtab.records import Json

UNKNOWN = math.nan
scores = st.floats(0, 10, allow_nan=False) | st.sampled_from([0.0, 0.5])


def pace(**options: Json) -> Pace:
    return Pace(PaceOptions.model_validate(options))


def commit(method: Pace | PoolChain, view: PoolView, want: int) -> Selection:
    selection = method.select(view, want)
    assert selection is not None
    method.formed(selection)
    return selection


# ------------------------------------------------------------------------------------------------------------------------ controller


def test_the_budget_follows_the_excess_and_carries_fractions() -> None:
    budget, seen = RejectionBudget(), []
    for n in (6, 16, 20, 24, 24, 12):
        budget = budget.next(n, 8, RejectionOptions(beta=0.5))
        seen.append((budget.groups, budget.ema))
    assert [k for k, _ in seen] == [0, 0, 2, 5, 6, 0]
    np.testing.assert_allclose([ema for _, ema in seen], [0, 0, 0.1, 0.2166667, 0.275, 0.1375], atol=1e-7)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=40), st.integers(1, 64), st.floats(0, 4), st.floats(0, 0.99))
@example([400] * 30 + [20], 16, 0.0, 0.9)  # a full pool that runs dry: the smoothed rate asks for more than there is
def test_the_budget_never_starves_the_learner(waiting: list[int], want: int, w_star: float, beta: float) -> None:
    options, budget = RejectionOptions(w_star=w_star, beta=beta), RejectionBudget()
    for n in waiting:
        budget = budget.next(n, want, options)
        assert 0 <= budget.groups <= max(0, n - want)
        assert 0 <= budget.ema <= 1
        assert 0 <= budget.carry < 1
        if n <= (1 + w_star) * want:
            assert budget.groups == 0


@pytest.mark.parametrize("name", ["pace", "random_reject"])
def test_the_pool_settles_at_the_target_plus_the_surplus_which_is_rejected(name: str) -> None:
    method = build(name, {"beta": 0.5})
    waits, rejects = Queue(method, 16).run([22] * 200)  # type: ignore[arg-type]
    assert np.mean(waits[-50:]) == pytest.approx(2 * 16 + 6, abs=1.0)
    assert np.mean(rejects[-50:]) == pytest.approx(6, abs=0.2)


def test_without_a_surplus_it_never_acts() -> None:
    _, rejects = Queue(pace(), 16).run([16] * 60)
    assert not any(rejects)


# ------------------------------------------------------------------------------------------------------------------------ ranking


def test_golden_percentiles_weights_and_effective_staleness() -> None:
    F = np.array([0.0, 0.02, 0.02, 0.10])
    np.testing.assert_allclose(percentile(F), [0.125, 0.5, 0.5, 0.875])
    omega = percentile(F) ** 4.0
    np.testing.assert_allclose(omega, [0.00024414, 0.0625, 0.0625, 0.58618164], atol=1e-8)
    members = zip((2.0, 3.0, 1.0, 4.0), (1.0, 0.0, 3.0, 0.0), F, strict=True)
    ES = effective_staleness(pool_view([[m] for m in members]), omega)
    np.testing.assert_allclose(ES, [1.00048828, 0.1875, 3.0625, 2.34472656], atol=1e-8)


@given(st.lists(scores, min_size=1, max_size=60))
def test_percentiles_are_mid_ranks(values: list[float]) -> None:
    F = np.array(values)
    brute = [(np.sum(x > F) + 0.5 * np.sum(x == F)) / len(F) for x in F]
    np.testing.assert_allclose(percentile(F), brute, rtol=1e-12)
    assert percentile(F).min() > 0
    assert percentile(F).max() < 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40), st.data())
def test_the_largest_are_found_with_ties_to_the_next_key_then_to_the_earliest(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    first, second = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    k = data.draw(st.integers(0, len(rows)))
    order = np.lexsort((np.arange(len(rows)), -second, -first))
    assert np.flatnonzero(largest(k, first, second)).tolist() == sorted(order[:k].tolist())


def test_quantile_is_the_smallest_entry_that_covers_the_share() -> None:
    assert quantile(np.arange(1.0, 101.0), 0.95) == 95
    assert quantile(np.array([3.0]), 0.95) == 3


groups = st.lists(
    st.lists(st.tuples(st.integers(0, 3).map(float), st.integers(0, 5).map(float), scores | st.just(UNKNOWN)), min_size=1, max_size=4),
    min_size=1,
    max_size=30,
)


@given(groups, st.sampled_from(["mean", "max"]), st.data())
def test_effective_staleness_of_a_group_is_over_its_members(members: list[list[Member]], unit: str, data: st.DataObject) -> None:
    view = pool_view(members)
    omega = np.array(data.draw(st.lists(st.floats(0, 1), min_size=len(view.row_M), max_size=len(view.row_M))))
    weights = iter(omega)
    ES = [[w + (next(weights) * g if g > 0 else 0) for g, w, _ in m] for m in members]
    want = [np.mean(x) if unit == "mean" else max(x) for x in ES]
    np.testing.assert_allclose(effective_staleness(view, omega, unit), want, atol=1e-9)  # type: ignore[arg-type]


@given(groups)
def test_weight_one_is_plain_age_and_weight_zero_is_waiting(members: list[list[Member]]) -> None:
    view = pool_view(members)
    one = np.ones(len(view.row_M))
    np.testing.assert_allclose(effective_staleness(view, one), view.now - view.mean_version, atol=1e-9)  # G + W = S
    np.testing.assert_allclose(effective_staleness(view, 0 * one), view.now - view.finished, atol=1e-9)
    for options, omega in (({"gamma": 0.0}, one), ({"waiting_only": True}, 0 * one)):
        known = [[(g, w, 0.1) for g, w, _ in m] for m in members]
        np.testing.assert_array_equal(pace(**options)._omega(pool_view(known))[1], omega)  # type: ignore[arg-type]


@settings(max_examples=50)
@given(groups, st.integers(1, 8), st.sampled_from(["fifo", "smallest"]), st.booleans())
def test_it_takes_a_batch_and_rejects_the_worst(members: list[list[Member]], want: int, order: str, requeue: bool) -> None:
    view = pool_view(members, want=want, ids=np.random.default_rng(0).permutation(1000)[: len(members)].tolist())
    method = pace(beta=0.0, w_star=0.5, order=order, requeue=requeue)
    selection = method.select(view, want)
    if len(members) < want:
        assert selection is None
        return
    assert selection is not None
    gone, row = selection.reject + selection.requeue, {i: r for r, i in enumerate(view.ids.tolist())}
    assert (selection.requeue == ()) is not (requeue and bool(gone))
    ES = effective_staleness(view, method._omega(view)[1])
    rest = [r for r in range(len(members)) if view.ids[r] not in gone]
    if gone:
        assert min(ES[row[i]] for i in gone) >= max(ES[r] for r in rest)
    if order == "fifo":
        assert [row[i] for i in selection.take] == rest[:want]
    else:
        assert max(ES[row[i]] for i in selection.take) <= min((ES[r] for r in rest if view.ids[r] not in selection.take), default=np.inf)


# ------------------------------------------------------------------------------------------------------------- scores and the ring


def test_unknown_scores_weigh_one_and_lost_prefixes_as_the_most_forgotten() -> None:
    view = pool_view([[(1.0, 0.0, f)] for f in (UNKNOWN, 0.2, math.inf, 0.1)])
    score, omega = pace()._omega(view)
    np.testing.assert_allclose(score, [math.nan, 0.2, 0.2, 0.1])
    np.testing.assert_allclose(omega, [1.0, (2 / 3) ** 4, (2 / 3) ** 4, (1 / 6) ** 4])
    np.testing.assert_allclose(pace()._omega(pool_view([[(1.0, 0.0, math.inf)]]))[1], [0.0625])
    np.testing.assert_allclose(pace()._omega(pool_view([[(1.0, 0.0, UNKNOWN)]]))[1], [1.0])


def test_a_small_population_is_topped_up_with_the_latest_that_left() -> None:
    method = pace(population=4)
    assert commit(method, pool_view([[(1.0, 0.0, f)] for f in (9.0, 0.1, 0.2)], want=3), 3).take == (0, 1, 2)
    np.testing.assert_allclose(method._omega(pool_view([[(1.0, 0.0, 0.15)], [(1.0, 0.0, 0.3)]]))[1], [(3 / 8) ** 4, (7 / 8) ** 4])
    np.testing.assert_allclose(method._omega(pool_view([[(1.0, 0.0, 0.15)]]))[1], [(3 / 8) ** 4])  # 9.0, 0.1, 0.2 and itself
    assert method.state_dict()["ring"] == [9.0, 0.1, 0.2]


def test_the_ring_is_bounded() -> None:
    method, view = pace(), pool_view([[(1.0, 0.0, 0.1)]] * 100, want=100)
    for _ in range(6):
        commit(method, view, 100)
    assert len(method.state_dict()["ring"]) == RING  # type: ignore[arg-type]


def test_select_may_be_polled_and_only_a_formed_batch_is_committed() -> None:
    draw = np.random.default_rng(1)
    views = [pool_view([[(float(draw.integers(0, 3)), 0.0, float(draw.random()))] for _ in range(30)], want=4) for _ in range(4)]
    polled, once = pace(), pace()
    for view in views:
        before = polled.state_dict()
        first = polled.select(view, 4)
        polled.select(pool_view([[(0.0, 0.0, UNKNOWN)]] * 9, want=4), 4)
        assert polled.select(view, 4) == first
        assert polled.state_dict() == before
        assert not view.recorder.metrics  # type: ignore[attr-defined]
        again = polled.select(view, 4)
        assert again is not None
        polled.formed(again)
        assert commit(once, view, 4) == again
        assert polled.state_dict() == once.state_dict() != before
        resumed = pace()
        resumed.load_state_dict(polled.state_dict())
        polled = resumed


def test_it_tells_what_it_did() -> None:
    members = [[(float(i % 3), float(i % 5), 0.1 * i)] for i in range(40)]
    view = pool_view(members, want=8)
    selection = commit(pool_chain(select=pace(beta=0.0)), view, 8)
    notes = view.recorder
    assert isinstance(notes, Notes)
    (decision,) = notes.decisions
    assert (decision.method, decision.point, decision.what, decision.amount) == ("pace", "select", "rejected", len(selection.reject))
    assert len(selection.reject) == 24
    for whose in ("taken", "rejected"):
        G, W, S = (np.divide(*notes.metrics[f"pace/{part}_{whose}"]) for part in ("generation", "waiting", "staleness"))
        assert pytest.approx(S) == G + W
    assert notes.metrics["pace/rejected"] == (24, 1)
    assert notes.metrics["pace/interrupted"] == (26, 40)
    assert notes.metrics["pace/forgetting_known"] == (26, 26)


@pytest.mark.parametrize("unit", ["mean", "max"])
def test_rounding_decides_no_tie(unit: str) -> None:
    """Groups of the same members in another order have the same effective staleness; their sums differ in the last bit."""
    groups = [[(age, 0.0, UNKNOWN) for age in ages] for ages in permutations((0.1, 0.2, 0.3))]  # (0.1 + 0.2) + 0.3 > 0.1 + (0.2 + 0.3)
    view = pool_view(groups, want=1)
    exact = effective_staleness(view, np.ones(len(view.row_M)), unit)  # type: ignore[arg-type]
    assert unit == "max" or len(set(exact.tolist())) > 1, "the case rests on sums that round differently"
    selection = pace(beta=0.0, unit=unit).select(view, 1)
    assert selection is not None
    assert selection.reject == (0, 1, 2, 3)  # all tie and have waited equally long: the earliest arrivals go
    assert selection.take == (4,)


def test_ties_go_to_what_has_waited_longer_then_to_the_earliest() -> None:
    """Effective staleness 2 of each, as 0 + 2, 1 + 1 and 2 + 0."""
    view = pool_view([[(2.0, 0.0, UNKNOWN)], [(0.0, 2.0, UNKNOWN)], [(1.0, 1.0, UNKNOWN)], [(0.0, 2.0, UNKNOWN)]], want=1)
    assert [pace(beta=0.0, w_star=w).select(view, 1).reject for w in (2.0, 1.0, 0.0)] == [(1,), (1, 3), (1, 2, 3)]  # type: ignore[union-attr]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(0, 30), st.integers(0, 2**32 - 1))
def test_noise_below_the_tolerance_changes_no_choice(values: list[int], k: int, seed: int) -> None:
    k, rng = min(k, len(values)), np.random.default_rng(seed)
    clean, second = np.array(values, np.float64), rng.integers(0, 3, len(values))
    noisy = clean + rng.uniform(-0.4, 0.4, len(values)) * TIE
    want = sorted(range(len(values)), key=lambda i: (-clean[i], -second[i], i))[:k]
    assert np.flatnonzero(largest(k, noisy, second, tie=TIE)).tolist() == sorted(want)


def test_freshest_prefers_the_latest_of_equals_whatever_their_sums_rounded_to() -> None:
    view = replace(pool_view([[(0.0, 1.0, UNKNOWN)]] * 3, want=1), mean_version=np.array([99.0 + 1e-14, 99.0, 99.0 - 1e-14]))
    assert build("freshest", {}).select(view, 1) == Selection((2,))  # type: ignore[attr-defined]


def test_what_it_asks_of_a_run() -> None:
    assert pace().rescoring == Rescoring("swap", "relu")
    assert pace(forgetting="none").rescoring is None
    assert (pace().min_depth, pace(w_star=2.5).min_depth) == (2, 3)


# ------------------------------------------------------------------------------------------------------------------- competitors


def test_random_rejection_spends_the_same_budget_on_other_groups() -> None:
    arriving = [22] * 60
    (_, ranked), (_, random) = (Queue(build(name, {}), 16).run(arriving) for name in ("pace", "random_reject"))  # type: ignore[arg-type]
    assert ranked == random
    members = [[(0.0, float(30 - i), UNKNOWN)] for i in range(30)]
    draws = set()
    for seed in range(5):
        method = build("random_reject", {"beta": 0.0, "seed": seed})
        first = method.select(pool_view(members, want=4), 4)  # type: ignore[attr-defined]
        assert method.select(pool_view(members, want=4), 4) == first  # type: ignore[attr-defined]
        method.formed(first)
        second = method.select(pool_view(members, want=4), 4)  # type: ignore[attr-defined]
        assert second.reject != first.reject
        draws.add(first.reject)
    assert len(draws) == 5


def test_freshest_takes_the_youngest_tokens() -> None:
    view = pool_view([[(0.0, 3.0, UNKNOWN)], [(2.0, 0.0, 0.1)], [(0.0, 1.0, UNKNOWN)], [(0.0, 2.0, UNKNOWN)]], want=2)
    method = build("freshest", {})
    assert method.select(view, 2) == Selection((2, 3))  # type: ignore[attr-defined]  # of two groups of age 2 the later one
    assert method.select(view, 5) is None  # type: ignore[attr-defined]


def test_max_age_lets_the_old_go_and_waits_for_others() -> None:
    view = pool_view([[(0.0, w, UNKNOWN)] for w in (3.0, 1.0, 0.0, 1.0)], want=2)
    for limit, want in ((2, Selection((1, 2), (0,))), (0, Selection((), (0, 1, 3)))):
        why = f"their oldest tokens are more than {limit} versions old"
        assert build("max_age", {"max_age": limit}).select(view, 2) == replace(want, why=why)  # type: ignore[attr-defined]
    assert build("max_age", {"max_age": 9}).select(view, 5) is None  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------------------------------- cost


def test_ten_thousand_groups_take_no_millisecond() -> None:
    """30 % interrupted, one rollout a group; the fastest of 50."""
    draw = np.random.default_rng(0)
    touched = draw.random(10_000) < 0.3
    rows = zip(np.where(touched, draw.exponential(2.0, 10_000), 0.0), draw.integers(0, 20, 10_000), draw.random(10_000), strict=True)
    view, method = pool_view([[(g, float(w), f)] for g, w, f in rows], want=64), pace()
    seconds = []
    for _ in range(50):
        begun = time.perf_counter()
        method.select(view, 64)
        seconds.append(time.perf_counter() - begun)
    assert min(seconds) < 1e-3
