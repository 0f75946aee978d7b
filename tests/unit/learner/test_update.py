"""The gradient of a whole update against plain autograd on the padded model, and what may not change it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from support.updates import (
    MAX_LENGTH,
    behavior,
    gradient_of,
    make_batch,
    make_chain,
    make_learner,
    map_rollouts,
    map_segments,
    plain_logps,
    tiny_model,
    worst,
)
from trimtab.control.protocol import (
    Credit,
    CreditMethod,
    Need,
    ObjectiveMethod,
    Refuse,
    ShapeMethod,
    StepMethod,
    StepResult,
    StepView,
    View,
    Weighing,
)
from trimtab.control.registry import ChainMember
from trimtab.learner.options import LearnerOptions
from trimtab.learner.packing import pack
from trimtab.learner.passes import Pass
from trimtab.learner.update import Learner
from trimtab.records import Batch, Group, Rollout, Segment

Loss = Callable[[Sequence[Tensor], Sequence[Rollout], np.ndarray], Tensor]


# ------------------------------------------------------------------------------------------ the reference, written from the formulas


def standardized(batch: Batch) -> np.ndarray:
    """GRPO's advantage of every rollout."""
    out = []
    for g in batch.groups:
        r = g.scores
        out.append((r - r.mean()) / (r.std(ddof=1) + 1e-6) if r.std() > 1e-8 else 0 * r)
    return np.concatenate(out)


def sequence_weight(logp: Tensor, r: Rollout, cap: float = 8.0) -> Tensor:
    return (logp.detach().double() - behavior(r)).sum().exp().clamp(max=cap)


def reference(model: nn.Module, batch: Batch, loss_of: Callable[[Tensor, Rollout, float], Tensor], advantage: np.ndarray) -> list[Tensor]:
    """d/d theta of mean over rollouts of the mean over tokens of the loss, by one ordinary backward."""
    logps = plain_logps(model, batch.rollouts)
    losses = [loss_of(lp, r, a).mean() for lp, r, a in zip(logps, batch.rollouts, advantage.tolist(), strict=True)]
    return list(torch.autograd.grad(torch.stack(losses).mean(), list(model.parameters())))


def weighted(logp: Tensor, r: Rollout, a: float) -> Tensor:
    return -sequence_weight(logp, r).to(logp.dtype) * a * logp


def clipped(logp: Tensor, r: Rollout, a: float) -> Tensor:
    ratio = (logp - behavior(r).to(logp.dtype)).exp()
    return torch.maximum(-ratio * a, -ratio.clamp(0.8, 1.2) * a)


def optimal(model: nn.Module, batch: Batch, weighting: str) -> np.ndarray:
    """OPOB's advantage, with one backward a rollout."""
    raw, cut, norm2 = [], [], []
    for r in batch.rollouts:
        (logp,) = plain_logps(model, [r])
        w = float((logp.detach().double() - behavior(r)).sum().exp())
        unit = logp.sum() if weighting != "exact" else min(w, 8.0) * logp.mean() / len(batch.rollouts)
        norm2.append(float(sum(g.square().sum() for g in torch.autograd.grad(unit, list(model.parameters())))))
        raw.append(w)
        cut.append(min(w, 8.0))
    raw_R, cut_R, norm2_R = np.array(raw), np.array(cut), np.array(norm2)
    W = {"paper": raw_R**2 * norm2_R, "repo": raw_R**2 * cut_R**2 * norm2_R, "exact": norm2_R}[weighting]
    out, first = [], 0
    for g in batch.groups:
        r, w = g.scores, W[first : first + len(g.rollouts)]
        first += len(r)
        out.append((r - (w * r).sum() / w.sum()) / (r.std(ddof=1) + 1e-6) if r.std() > 1e-8 else 0 * r)
    return np.concatenate(out)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("seed", [0, 1])
def test_sequence_tis_with_grpo(tied: bool, seed: int) -> None:
    model = tiny_model(tied=tied)
    batch = make_batch(model, seed=seed, spread=0.6)
    want = reference(model, batch, weighted, standardized(batch))
    assert worst(gradient_of(model, ["seq_tis", "grpo"], batch), want) < 1e-10


def test_ppo_clip_with_grpo() -> None:
    model = tiny_model()
    batch = make_batch(model, spread=0.3)
    want = reference(model, batch, clipped, standardized(batch))
    assert worst(gradient_of(model, ["ppo_clip", "grpo"], batch), want) < 1e-10


@pytest.mark.parametrize("norms", ["bookkeeping", "two_pass", "two_buffer", "auto"])
@pytest.mark.parametrize("weighting", ["paper", "exact", "repo"])
def test_vcpo(weighting: str, norms: str) -> None:
    model = tiny_model()
    batch = make_batch(model, spread=0.6)
    want = reference(model, batch, weighted, optimal(model, batch, weighting))
    got = gradient_of(model, ["vcpo", {"name": "opob", "weighting": weighting}], batch, norms=norms)
    assert worst(got, want) < 1e-10


def test_vcpo_in_float32() -> None:
    model = tiny_model()
    batch = make_batch(model, spread=0.6)
    want = reference(model, batch, weighted, optimal(model, batch, "paper"))
    got = gradient_of(model.float(), ["vcpo"], batch)
    assert worst([g.double() for g in got], want) < 2e-5


def test_bfloat16_keeps_log_probs_in_float32() -> None:
    model = tiny_model(torch.float32)
    batch = make_batch(model, [[1, 0, 0, 1], [0, 1, 0, 0]])
    learner, _ = make_learner(model.bfloat16(), ["vcpo"], stop=True)
    (result,) = learner.train(batch)
    assert result.reason == "capture: captured"
    assert result.seen is not None
    packed = pack(batch.rollouts)
    exact = (learner.model.score(packed) - packed.behavior_N).double().numpy()  # behavior as it was recorded, not rounded to bfloat16
    np.testing.assert_allclose(result.seen.log_ratio_N, exact, rtol=0, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------- one denominator

SPLITS = [1, 25, 60, 200, 10_000]


@pytest.mark.parametrize(
    "methods", [["seq_tis", "grpo"], ["ppo_clip", {"name": "grpo", "std": "batch"}], ["vcpo"]], ids=["tis", "ppo", "vcpo"]
)
@pytest.mark.parametrize("reduction", ["seq_mean_token_mean", "token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"])
def test_any_split_into_micro_batches_gives_the_same_gradient(methods: list[Any], reduction: str) -> None:
    model = tiny_model()
    batch = make_batch(model)
    want = gradient_of(model, methods, batch, reduction=reduction)
    for micro_tokens in SPLITS:
        assert worst(gradient_of(model, methods, batch, reduction=reduction, micro_tokens=micro_tokens), want) < 1e-10


@pytest.mark.parametrize(
    "methods", [["seq_tis", "grpo"], ["vcpo"], ["tok_tis", {"name": "opob", "weighting": "exact"}]], ids=["tis", "vcpo", "token"]
)
def test_any_split_gives_the_same_gradient_in_float32(methods: list[Any]) -> None:
    model = tiny_model(torch.float32)
    batch = make_batch(model)
    want = gradient_of(model, methods, batch)
    for micro_tokens in SPLITS:
        assert worst(gradient_of(model, methods, batch, micro_tokens=micro_tokens), want) < 2e-5


@pytest.mark.parametrize("std", ["group", "population", "batch", "none"])
@pytest.mark.parametrize("norms", ["bookkeeping", "two_pass", "two_buffer"])
def test_credit_of_split_groups_is_that_of_whole_ones(std: str, norms: str) -> None:
    model = tiny_model()
    batch = make_batch(model)
    methods = ["vcpo", {"name": "opob", "std": std}]
    want = gradient_of(model, methods, batch)
    for micro_tokens in (1, 40, 120):
        assert worst(gradient_of(model, methods, batch, micro_tokens=micro_tokens, norms=norms), want) < 1e-10


def test_a_mask_never_changes_the_denominator() -> None:
    model = tiny_model()
    batch = make_batch(model, spread=0.6)
    logps = plain_logps(model, batch.rollouts)
    ratio = np.array([float((lp.detach() - behavior(r)).sum().exp()) for lp, r in zip(logps, batch.rollouts, strict=True)])
    high = float(np.median(ratio))
    masked = {id(r) for r, w in zip(batch.rollouts, ratio, strict=True) if w > high}

    def loss(logp: Tensor, r: Rollout, a: float) -> Tensor:
        return (0.0 if id(r) in masked else -a * sequence_weight(logp, r, cap=1e9)) * logp

    want = reference(model, batch, loss, standardized(batch))
    for micro_tokens in (None, 50):
        assert worst(gradient_of(model, [{"name": "seq_mis", "high": high}, "grpo"], batch, micro_tokens=micro_tokens), want) < 1e-10


class TableModel:
    """log p of a token = log_softmax(table)[token], whatever stands before it: its bits do not depend on how rollouts are packed."""

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self) -> None:
        self.table = nn.Parameter(torch.randn(17, generator=torch.Generator().manual_seed(0)))

    def parameters(self) -> list[nn.Parameter]:
        return [self.table]

    def names(self) -> list[str]:
        return ["table.weight"]

    def forward(self, packed: Any, *, norms: bool = False, vocab: bool = False) -> Pass:
        logp = torch.log_softmax(self.table, 0)
        entropy = -(logp.exp() * logp).sum().expand(len(packed.targets_H)) * (1 + packed.targets_H / 17)
        return Pass(packed, (logp[packed.targets_H], entropy if vocab else None, None))

    def score(self, packed: Any) -> Tensor:
        return self.forward(packed).current_N


def table_learner(**options: Any) -> Learner:
    chosen = LearnerOptions.model_validate(options)
    chain, _ = make_chain(["seq_tis", "grpo", "ess"], stop=False)
    return Learner(TableModel(), chain, chosen, max_length=MAX_LENGTH)  # type: ignore[arg-type]


def test_statistics_are_the_same_to_the_bit_under_any_split() -> None:
    batch = make_batch(tiny_model(torch.float32), spread=0.6)

    def run(micro_tokens: int | None) -> tuple[Any, ...]:
        (result,) = table_learner(micro_tokens=micro_tokens).train(batch)
        seen = result.seen
        assert seen is not None
        assert seen.entropy_N is not None
        return seen.log_ratio_R.tolist(), seen.log_ratio_N.tolist(), seen.age_N.tolist(), seen.entropy_N.tolist(), result.multiplier

    want = run(None)
    assert 0 < want[-1] < 1
    logp = torch.log_softmax(TableModel().table.detach(), 0).double()
    order = [sum(float(logp[s.tokens[s.action_mask]].sum()) for s in r.segments) - float(behavior(r).sum()) for r in batch.rollouts]
    assert want[0] == pytest.approx(order, abs=1e-5)  # in the order of the batch's rollouts, silent ones in their place
    assert len(want[1]) == sum(r.actions for r in batch.rollouts)
    for micro_tokens in SPLITS:
        assert run(micro_tokens) == want


# ------------------------------------------------------------------------------------------------------ batch -> updates -> step


def weights(learner: Learner) -> list[Tensor]:
    return [p.detach().clone() for p in learner.model.parameters()]


def identical(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def state(learner: Learner) -> list[Tensor]:
    """Weights, moments and the schedule's count: everything of the optimizer."""
    saved: Any = learner.optimizer.state_dict()
    moments = [v for m in saved["moments"] for v in m.values()]
    return [*weights(learner), *moments, torch.tensor([saved["applied"], learner.applied_batches])]


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


def test_silent_groups_count_in_every_denominator_and_statistic_but_get_no_backward() -> None:
    model = tiny_model()
    batch = make_batch(model, [[1, 0, 0, 1], [1, 1, 1, 1]])
    learner, capture = make_learner(model, ["vcpo"], stop=True)
    (result,) = learner.train(batch)
    alone = gradient_of(model, ["vcpo"], dataclasses.replace(batch, groups=batch.groups[:1]))
    assert worst(capture.seen[0], [g / 2 for g in alone]) < 1e-10
    assert result.seen is not None
    assert len(result.seen.log_ratio_R) == 8
    assert result.seen.entropy_N is not None
    assert len(result.seen.entropy_N) == sum(r.actions for r in batch.rollouts)  # a mean over all tokens, not those with a backward


def test_shaped_rewards_are_credited_where_scores_are_equal() -> None:
    model = tiny_model()
    batch = make_batch(model, [[1, 1, 1, 1], [0, 0, 1, 0]])
    rewards = iter([0.2, 0.9, 0.4, 0.1, 0, 0, 1, 0])
    shaped = dataclasses.replace(
        batch, groups=tuple(map_rollouts(g, lambda r: dataclasses.replace(r, reward=float(next(rewards)))) for g in batch.groups)
    )
    as_scores = dataclasses.replace(
        shaped, groups=tuple(map_rollouts(g, lambda r: dataclasses.replace(r, score=r.reward, reward=None)) for g in shaped.groups)
    )
    got, want = (gradient_of(model, ["vcpo"], b) for b in (shaped, as_scores))
    assert identical(got, want)


class Brief(ShapeMethod):
    """Takes 0.1 off for every token."""

    name = "brief"

    def __init__(self) -> None:
        """No options."""

    def shape(self, view: View) -> Tensor:
        return torch.full_like(view.behavior_N, -0.1)


@pytest.mark.parametrize("methods", [["seq_tis", "grpo"], ["vcpo"]])
@pytest.mark.parametrize("micro_tokens", [None, 60, 20])
def test_a_shaping_method_changes_the_reward_that_credit_reads(methods: list[str], micro_tokens: int | None) -> None:
    model = tiny_model()
    batch = make_batch(model)
    learner, capture = make_learner(model, methods, stop=True, micro_tokens=micro_tokens)
    learner.chain.members.insert(0, ChainMember(Brief(), ""))
    learner = Learner(learner.model, learner.chain, learner.options, max_length=MAX_LENGTH)
    learner.train(batch)
    shorter = dataclasses.replace(
        batch,
        groups=tuple(map_rollouts(g, lambda r: dataclasses.replace(r, reward=r.score - 0.1 * r.actions)) for g in batch.groups),
    )
    assert worst(capture.seen[0], gradient_of(model, methods, shorter)) < 1e-10


# --------------------------------------------------------------------------------------------------------------- broken data


def invalidated(batch: Batch, chosen: Callable[[Segment], np.ndarray]) -> tuple[Batch, Batch]:
    """(non-finite behavior log-probs on the chosen action tokens, the same tokens off the mask)."""

    def nan(s: Segment) -> Segment:
        bad = np.where(np.arange(len(s.tokens)) % 2 == 0, np.nan, np.inf).astype(np.float32)
        return dataclasses.replace(s, behavior_logp=np.where(chosen(s) & s.action_mask, bad, s.behavior_logp))

    def off(s: Segment) -> Segment:
        gone = chosen(s) & s.action_mask
        return dataclasses.replace(
            s,
            action_mask=s.action_mask & ~gone,
            behavior_logp=np.where(gone, np.float32(0), s.behavior_logp),
            versions=np.where(gone, np.int32(-1), s.versions),
        )

    return tuple(dataclasses.replace(batch, groups=tuple(map_segments(g, f) for g in batch.groups)) for f in (nan, off))  # type: ignore[return-value]


@pytest.mark.parametrize("methods", [["seq_tis", "grpo"], ["vcpo"]])
@pytest.mark.parametrize("reduction", ["seq_mean_token_mean", "token_mean"])
def test_a_token_without_a_usable_behavior_log_prob_leaves_the_mask_before_any_denominator(methods: list[str], reduction: str) -> None:
    model = tiny_model()
    bad, clean = invalidated(make_batch(model), lambda s: np.arange(len(s.tokens)) % 3 == 0)
    learner, capture = make_learner(model, methods, stop=True, reduction=reduction)
    (result,) = learner.train(bad)
    dropped = sum(a.actions - b.actions for a, b in zip(bad.rollouts, clean.rollouts, strict=True))
    assert (result.invalid_tokens, result.reason) == (dropped, "capture: captured")
    assert dropped > 10
    assert identical(capture.seen[0], gradient_of(model, methods, clean, reduction=reduction))


@pytest.mark.parametrize("micro_tokens", [None, 1, 30])
def test_rollouts_and_groups_without_a_valid_token_contribute_nothing(micro_tokens: int | None) -> None:
    model = tiny_model()
    batch = make_batch(model)
    gone = {id(s) for r in (*batch.groups[1].rollouts, batch.groups[0].rollouts[0]) for s in r.segments}
    bad, _ = invalidated(batch, lambda s: np.full(len(s.tokens), id(s) in gone))

    def loss(logp: Tensor, r: Rollout, a: float) -> Tensor:
        return (0.0 if any(id(s) in gone for s in r.segments) else -a * sequence_weight(logp, r)) * logp

    left = [
        dataclasses.replace(g, rollouts=tuple(r for r in g.rollouts if not any(id(s) in gone for s in r.segments))) for g in batch.groups
    ]
    clean = dataclasses.replace(batch, groups=tuple(g for g in left if g.rollouts))
    want = reference(model, clean, loss, standardized(clean))  # as if they had never been: in mean, std and number of rollouts
    assert worst(gradient_of(model, ["seq_tis", "grpo"], bad, micro_tokens=micro_tokens), want) < 1e-10
    learner, _ = make_learner(model, ["vcpo"], micro_tokens=micro_tokens)
    (result,) = learner.train(bad)
    assert result.applied
    assert result.empty_rollouts == 5
    assert result.seen is not None
    assert len(result.seen.log_ratio_R) == len(clean.rollouts)  # a ratio of nothing is no ratio of 1


def test_a_batch_without_a_valid_token_is_a_refused_step() -> None:
    model = tiny_model()
    bad, _ = invalidated(make_batch(model), lambda s: np.full(len(s.tokens), True))
    learner, _ = make_learner(model, ["vcpo"])
    before = state(learner)
    (result,) = learner.train(bad)
    assert (result.applied, result.reason) == (False, "no valid action token")
    assert identical(state(learner), before)


def test_a_nan_score_is_no_equal_score() -> None:
    model = tiny_model()
    batch = make_batch(model, [[1, float("nan"), 0, 1], [1, 0, 1, 0]])
    learner, _ = make_learner(model, ["seq_tis", "grpo"])
    (result,) = learner.train(batch)
    assert result.reason == "non-finite loss"


# ---------------------------------------------------------------------------------------------------------- the routes in training


@pytest.mark.parametrize("micro_tokens", [None, 60])
def test_the_three_routes_train_the_same_weights(micro_tokens: int | None) -> None:
    model = tiny_model()
    batches = [make_batch(model, seed=i, number=i, spread=0.4) for i in range(5)]
    ends = {}
    for route in ("bookkeeping", "two_pass", "two_buffer"):
        learner, _ = make_learner(model, ["vcpo"], norms=route, micro_tokens=micro_tokens, optimizer={"lr": 1e-3})
        assert all(learner.train(b)[0].applied for b in batches)
        ends[route] = weights(learner)
    assert worst(ends["two_pass"], ends["bookkeeping"]) < 1e-8
    assert worst(ends["two_buffer"], ends["bookkeeping"]) < 1e-8
    assert worst(ends["bookkeeping"], list(model.parameters())) > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norms", ["bookkeeping", "two_pass", "two_buffer"])
@pytest.mark.parametrize("all_groups", [True, False])
def test_negligible_coefficients_are_no_error(norms: str, dtype: torch.dtype, all_groups: bool) -> None:
    """One rollout of a group is so unlikely now that it weighs nothing: b* is the others' reward and every coefficient about 0."""
    model = tiny_model(dtype)
    batch = make_batch(model, [[1, 0, 1, 1], [0, 0, 1, 0]])

    def unlikely(r: Rollout) -> Rollout:
        if r.member != lone:
            return r
        shifted = (dataclasses.replace(s, behavior_logp=np.where(s.action_mask, s.behavior_logp + 80, s.behavior_logp)) for s in r.segments)
        return dataclasses.replace(r, segments=tuple(shifted))

    groups = []
    for lone, g in zip((1, 2), batch.groups, strict=True):
        groups.append(map_rollouts(g, unlikely) if all_groups or lone == 1 else g)
    for std in ("group", "none"):
        learner, _ = make_learner(model, ["vcpo", {"name": "opob", "std": std}], norms=norms)
        (result,) = learner.train(dataclasses.replace(batch, groups=tuple(groups)))
        assert result.applied or result.reason.startswith("no_signal")


# --------------------------------------------------------------------------------------------------------------------- contracts


class Uneven(ObjectiveMethod):
    """An objective that is not linear in what opob may re-weight, and says it is."""

    name, linear = "uneven", True

    def __init__(self) -> None:
        """No options."""

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        return -view.current * advantage_N * (1 + torch.arange(len(advantage_N)) % 2)


def test_an_objective_that_is_not_linear_after_all_is_an_error_not_a_wrong_gradient() -> None:
    model = tiny_model()
    learner, _ = make_learner(model, ["vcpo"])
    learner.chain.members = [ChainMember(Uneven(), "") if m.method.name == "linear" else m for m in learner.chain.members]
    with pytest.raises(RuntimeError, match="the objective is not linear in a rollout-constant advantage"):
        learner.train(make_batch(model))


class Curious(CreditMethod):
    """Credit that reads current log-probs and entropies before the backward."""

    name, needs = "curious", Need.SCORE | Need.VOCAB

    def __init__(self) -> None:
        self.saw: list[Tensor] = []

    def credit(self, view: View, w: Weighing) -> Credit:
        assert view.entropy_N is not None
        self.saw = [view.log_ratio_R, view.entropy_N, w.log_scale_R]
        return Credit(view.reward_R)


@pytest.mark.parametrize("micro_tokens", [None, 40])
def test_a_method_that_needs_scores_sees_them(micro_tokens: int | None) -> None:
    model = tiny_model()
    batch = make_batch(model)
    learner, _ = make_learner(model, ["seq_tis", "grpo"], entropy=False, micro_tokens=micro_tokens)
    curious = Curious()
    learner.chain.members = [ChainMember(curious, "") if m.method.name == "grpo" else m for m in learner.chain.members]
    learner = Learner(learner.model, learner.chain, learner.options, max_length=MAX_LENGTH)
    assert learner.train(batch)[0].applied
    exact = torch.tensor(
        [float((lp.detach() - behavior(r)).sum()) for lp, r in zip(plain_logps(model, batch.rollouts), batch.rollouts, strict=True)]
    )
    torch.testing.assert_close(curious.saw[0], exact.double(), rtol=0, atol=1e-6)
    assert len(curious.saw[1]) == sum(r.actions for r in batch.rollouts)
    torch.testing.assert_close(curious.saw[2], exact.double().clamp(max=float(np.log(8.0))), rtol=0, atol=1e-6)


# ------------------------------------------------------------------------------------------------------------------------- state


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
