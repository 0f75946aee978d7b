"""From a batch to its updates to a step: what a step is, and that a skipped one moves nothing."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from support.formulas import optimal, reference, weighted
from support.updates import (
    behavior,
    identical,
    make_batch,
    make_learner,
    map_rollouts,
    map_segments,
    plain_logps,
    state,
    tiny_model,
    weights,
    worst,
)
from trimtab.control.protocol import (
    Refuse,
    StepMethod,
    StepResult,
    StepView,
)
from trimtab.control.registry import ChainMember
from trimtab.records import Batch, Group, Segment


def test_a_step_is_adamw_on_the_clipped_gradient_at_the_scaled_rate() -> None:
    model = tiny_model()
    batch = make_batch(model, spread=0.6)
    options: dict[str, Any] = {"optimizer": {"lr": 1e-3, "weight_decay": 0.2}, "schedule": {"kind": "constant", "warmup": 4}}
    methods = ["vcpo", {"name": "norm_clip", "max_norm": 0.01}]
    learner, _ = make_learner(model, methods, **options)
    (result,) = learner.train(batch)

    other = copy.deepcopy(model)
    raw = reference(other, batch, weighted, optimal(other, batch, "paper"))
    norm = float(sum(g.square().sum() for g in raw)) ** 0.5
    w = np.exp([float((lp.detach() - behavior(r)).sum()) for lp, r in zip(plain_logps(model, batch.rollouts), batch.rollouts, strict=True)])
    share = w.sum() ** 2 / (w**2).sum() / len(w)
    adamw = torch.optim.AdamW(other.parameters(), lr=1e-3 * share**0.5 / 4, weight_decay=0.2)
    for p, g in zip(other.parameters(), raw, strict=True):
        p.grad = g * min(1.0, 0.01 / norm)
    adamw.step()

    assert (result.applied, result.reason) == (True, "")
    assert result.multiplier == pytest.approx(share**0.5)
    assert result.lr == pytest.approx(1e-3 / 4)  # before the multiplier
    assert (result.raw_norm, result.norm) == (pytest.approx(norm), pytest.approx(0.01))
    assert worst(weights(learner), list(other.parameters())) < 1e-9
    assert [d.what for d in result.notes.decisions] == ["clipped", "scaled"]
    assert learner.applied_batches == 1


def test_updates_of_a_batch_are_those_of_its_parts() -> None:
    model = tiny_model()
    batch = make_batch(model)
    whole, seen = make_learner(model, ["vcpo"], updates_per_batch=3)
    results = whole.train(batch)
    parts, _ = make_learner(model, ["vcpo"])
    for a, b in ((0, 1), (1, 2), (2, 4)):
        parts.train(dataclasses.replace(batch, groups=batch.groups[a:b]))
    assert [r.applied for r in results] == [True, True, True]
    assert identical(weights(whole), weights(parts))
    assert (whole.optimizer.applied, whole.applied_batches) == (3, 1)
    assert len(seen.seen) == 3


def equal_scores(batch: Batch, score: float = 1.0) -> Batch:
    return dataclasses.replace(batch, groups=tuple(map_rollouts(g, lambda r: dataclasses.replace(r, score=score)) for g in batch.groups))


class Broken(StepMethod):
    """Refuses, or answers NaN."""

    name = "broken"

    def __init__(self, verdict: float | Refuse) -> None:
        self.verdict = verdict

    def step(self, s: StepView) -> float | Refuse:
        return self.verdict


@pytest.mark.parametrize("case", ["no_signal", "skip", "refuse", "multiplier", "weights", "silent weights"])
def test_a_skipped_step_moves_nothing(case: str) -> None:
    """Weights, moments, the schedule's count: bit-identical; everybody is told; and the next batch steps as if nothing had been."""
    model = tiny_model()
    first, second, third = (make_batch(model, seed=i, number=i) for i in range(3))
    learner, capture = make_learner(model, ["vcpo"], optimizer={"lr": 1e-2}, schedule={"kind": "constant", "warmup": 3})
    twin, _ = make_learner(model, ["vcpo"], optimizer={"lr": 1e-2}, schedule={"kind": "constant", "warmup": 3})
    learner.train(first)
    twin.train(first)
    before = state(learner)
    told: list[StepResult] = []
    capture.after = told.append  # type: ignore[method-assign]

    want = {
        "no_signal": "no_signal: every coefficient is zero",
        "skip": "capture: captured",
        "refuse": "broken: bad day",
        "multiplier": "broken: multiplier nan is outside (0, 1]",
        "weights": "non-finite current log-prob",
        "silent weights": "non-finite current log-prob",
    }[case]
    row = learner.model.model.get_input_embeddings().weight
    if case == "no_signal":
        second = equal_scores(second)
    elif case == "skip":
        capture.stop = True
    elif case in ("refuse", "multiplier"):
        learner.chain.members.append(ChainMember(Broken(Refuse("bad day") if case == "refuse" else float("nan")), ""))
    elif case == "silent weights":  # only a silent group looks this row up
        second = dataclasses.replace(second, groups=tuple(only_silent_uses(g, 16, silent=i == 2) for i, g in enumerate(second.groups)))
    kept = row.detach().clone()
    if "weights" in case:
        with torch.no_grad():
            row[16 if case == "silent weights" else slice(None)] = float("nan")
    (result,) = learner.train(second)
    with torch.no_grad():
        row.copy_(kept)

    assert (result.applied, result.reason, result.multiplier) == (False, want, 0.0)
    assert identical(state(learner), before)
    assert all(p.grad is None for p in learner.model.parameters())
    assert [(r.applied, r.reason, r.batch_id) for r in told] == [(False, want, 1)]

    capture.stop = False
    learner.chain.members = [m for m in learner.chain.members if m.method.name != "broken"]
    learner.train(third)
    twin.train(third)
    assert identical(state(learner), state(twin))


def only_silent_uses(g: Group, token: int, *, silent: bool) -> Group:
    def swap(s: Segment) -> Segment:
        tokens = np.where(s.tokens == token, np.int32(3), s.tokens)
        tokens[0] = token if silent else tokens[0]
        return dataclasses.replace(s, tokens=tokens)

    return map_segments(g, swap)


def test_a_restored_learner_goes_on_bit_for_bit() -> None:
    model = tiny_model(torch.float32)
    batches = [make_batch(model, seed=i, number=i) for i in range(4)]
    a, _ = make_learner(model, ["vcpo"], optimizer={"lr": 1e-3}, schedule={"kind": "wsd", "warmup": 2, "stable": 1, "decay": 5})
    for b in batches[:2]:
        a.train(b)
    saved = copy.deepcopy(a.state_dict())
    again, _ = make_learner(a.model.model, ["vcpo"], optimizer={"lr": 1e-3}, schedule={"kind": "wsd", "warmup": 2, "stable": 1, "decay": 5})
    again.load_state_dict(saved)
    for b in batches[2:]:
        (x,), (y,) = a.train(b), again.train(b)
        assert (x.lr, x.cosine, x.raw_norm) == (y.lr, y.cosine, y.raw_norm)
    assert identical(state(a), state(again))
