"""In which order rows come: all alike as ever, several files by their weights, both without a memory of what was drawn."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab import keyed
from trimtab.pool.order import mixed, quotas, whole
from trimtab.pool.plan import Plan

PARTS = [np.arange(0, 7), np.arange(7, 60), np.arange(60, 61)]


def test_one_set_of_rows_comes_in_the_keyed_order_as_ever() -> None:
    assert whole(5, np.arange(9))(3).tolist() == keyed.permutation(5, 3, 9).tolist()
    left = np.array([0, 4, 5, 8])
    assert whole(5, left)(3).tolist() == left[keyed.permutation(5, 3, 4)].tolist()


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6), st.integers(6, 500))
def test_quotas_are_whole_and_near_the_shares(weights: list[float], slots: int) -> None:
    given_ = quotas(slots, weights)
    assert sum(given_) == slots
    assert min(given_) >= 1
    exact = np.array(weights) / sum(weights) * slots
    lifted = int((exact < 1).sum())  # each of them may cost another one
    assert (np.abs(np.array(given_) - exact) <= 1 + lifted).all()
    assert quotas(slots, [w * 3 for w in weights]) == given_


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31), st.tuples(*[st.floats(0.05, 20)] * 3))
def test_a_mixture_draws_the_quotas_and_goes_through_every_set_in_passes(seed: int, weights: tuple[float, ...]) -> None:
    order, shares = mixed(seed, PARTS, weights), quotas(61, weights)
    seen: Counter[int] = Counter()
    for epoch in range(12):
        rows = order(epoch).tolist()
        assert [sum(r in part for r in rows) for part in PARTS] == shares
        seen.update(rows)
        for part, share in zip(PARTS, shares, strict=True):  # after so many draws, every row has come equally often, or once more
            whole_passes = (epoch + 1) * share // len(part)
            assert {seen[int(r)] for r in part} <= {whole_passes, whole_passes + 1}


def test_a_mixture_is_a_function_of_seed_and_epoch() -> None:
    weights = [3.0, 1.0, 1.0]
    assert mixed(1, PARTS, weights)(4).tolist() == mixed(1, PARTS, weights)(4).tolist()
    assert mixed(1, PARTS, weights)(4).tolist() != mixed(2, PARTS, weights)(4).tolist()
    assert mixed(1, PARTS, weights)(4).tolist() != mixed(1, PARTS, weights)(5).tolist()


def test_a_plan_over_a_mixture_resumes_where_it_was() -> None:
    def plan() -> Plan:
        return Plan(seed=3, prompts=61, batch_groups=2, batches=90, order=mixed(3, PARTS, [1, 1, 1]))

    through = plan()
    drawn = [through.draw() for _ in range(100)]
    stopped = plan()
    assert [stopped.draw() for _ in range(45)] == drawn[:45]
    resumed = plan()
    resumed.restore(stopped.state())
    assert [resumed.draw() for _ in range(55)] == drawn[45:]
