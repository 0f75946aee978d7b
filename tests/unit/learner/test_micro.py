"""How groups become micro-batches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.rollouts import segment
from support.updates import group
from trimtab.learner.micro import Micro, Share, plan_micros
from trimtab.records import Group, Outcome, Rollout, StopReason


def rollout(member: int, tokens: int, reward: float, valid: bool = True) -> Rollout:
    s = segment(np.random.default_rng(0), "." + "a" * (tokens - 1))
    if not valid:
        s = dataclasses.replace(s, action_mask=np.zeros_like(s.action_mask))
    return Rollout(member=member, segments=(s,), score=reward, outcome=Outcome.WRONG, stop=StopReason.EOS)


def groups_of(shape: list[list[tuple[int, float, bool]]]) -> list[Group]:
    return [group(g, [rollout(i, n, r, v) for i, (n, r, v) in enumerate(row)]) for g, row in enumerate(shape)]


def tokens(m: Micro) -> int:
    return sum(len(r.segments[0].tokens) for r in m.rollouts if r.actions)


ROW = st.lists(
    st.tuples(st.integers(2, 20), st.sampled_from([0.0, 1.0]), st.sampled_from([True, True, True, False])), min_size=1, max_size=5
)


@given(shape=st.lists(ROW, min_size=1, max_size=6), budget=st.none() | st.integers(1, 60), silent=st.booleans())
def test_every_plan_is_a_partition_that_keeps_its_promises(
    shape: list[list[tuple[int, float, bool]]], budget: int | None, silent: bool
) -> None:
    groups = groups_of(shape)
    flat = [r for g in groups for r in g.rollouts]
    owner = {id(r): i for i, g in enumerate(groups) for r in g.rollouts}
    if not any(r.actions for r in flat):
        return
    micros = plan_micros(Share(groups), budget, silent=silent)

    placed = sorted(i for m in micros for i in m.places)
    assert placed == list(range(len(flat)))
    for m in micros:
        assert all(flat[i] is r for i, r in zip(m.places, m.rollouts, strict=True))
        assert [owner[id(r)] for r in m.rollouts] == m.group_R
        assert any(r.actions for r in m.rollouts)
        longest = max(len(r.segments[0].tokens) for r in m.rollouts)
        assert budget is None or tokens(m) <= max(budget, longest)
    assert [m.live for m in micros] == sorted((m.live for m in micros), reverse=True)

    where: dict[int, set[int]] = {}
    for k, m in enumerate(micros):
        for g in m.group_R:
            where.setdefault(g, set()).add(k)
    for k, m in enumerate(micros):
        if m.whole:
            assert all(where[g] == {k} for g in m.group_R)
    for g, row in enumerate(shape):
        quiet = silent and len({r for _, r, _ in row}) == 1
        for k in where[g]:
            carries = any(r.actions for r, gr in zip(micros[k].rollouts, micros[k].group_R, strict=True) if gr == g)
            assert micros[k].live is not quiet or not carries
    if budget is None:
        assert len(micros) <= 2


def test_group_numbers_are_those_of_the_update() -> None:
    groups = groups_of([[(4, 1, True), (4, 1, True)], [(4, 1, True), (4, 0, True)], [(4, 0, True), (4, 1, True)]])
    micros = plan_micros(Share(groups), None, silent=True)
    assert [(m.live, m.group_R, m.places) for m in micros] == [(True, [1, 1, 2, 2], [2, 3, 4, 5]), (False, [0, 0], [0, 1])]


@pytest.mark.parametrize(
    ("budget", "sizes"),
    [
        (None, [[0, 1, 2, 3, 4, 5]]),
        (16, [[0, 1, 2, 3], [4, 5]]),
        (8, [[0, 1], [2, 3], [4, 5]]),
        (7, [[0], [1], [2], [3], [4], [5]]),
        (1, [[0], [1], [2], [3], [4], [5]]),
    ],
)
def test_whole_groups_fill_a_micro_batch_and_only_a_larger_group_is_split(budget: int | None, sizes: list[list[int]]) -> None:
    shape = [[(4, 1.0, True), (4, 0.0, True)] for _ in range(3)]
    micros = plan_micros(Share(groups_of(shape)), budget, silent=True)
    assert [m.places for m in micros] == sizes
    assert [m.whole for m in micros] == [budget is None or budget >= 8] * len(micros)
