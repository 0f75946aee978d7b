"""Every credit owner with every reduction, scope, std and estimator through the real learner, against one backward a rollout in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from support.updates import MAX_LENGTH, MIXED, behavior, gradient_of, make_batch, make_learner, plain_logps, tiny_model, worst
from trimtab.learner.norms import top
from trimtab.learner.packing import Packed
from trimtab.learner.passes import Pass
from trimtab.records import Batch, TrimtabError

REDUCTIONS = ("seq_mean_token_mean", "token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm")
STDS = ("group", "population", "batch", "none")
CAP = 8.0


@dataclass(frozen=True)
class Known:
    """What the oracle knows of a batch: one log-prob array, weight and length a rollout, and gradients at any coefficient."""

    model: nn.Module
    batch: Batch
    logp: tuple[np.ndarray, ...]
    weight: np.ndarray  # untruncated
    reward: np.ndarray
    group: np.ndarray
    length: np.ndarray

    def groups(self, f: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """f of the places of each group, put together."""
        out = np.zeros(len(self.reward))
        for g in np.unique(self.group):
            places = np.flatnonzero(self.group == g)
            out[places] = f(places)
        return out

    def scale(self, std: str) -> np.ndarray:
        def one(x: np.ndarray) -> float:
            spread = x.std(ddof=0 if std == "population" else 1)
            return 0.0 if spread <= 1e-8 else 1 / (spread + (0 if std == "population" else 1e-6))

        if std in ("none", "batch"):
            return np.full(len(self.reward), 1.0 if std == "none" else one(self.reward))
        return self.groups(lambda i: np.full(len(i), one(self.reward[i])))

    def factor(self, reduction: str) -> np.ndarray:
        """The coefficient of a token's loss, per rollout."""
        n, length = len(self.reward), self.length
        return {
            "seq_mean_token_mean": 1 / (n * length),
            "token_mean": np.full(n, 1 / length.sum()),
            "seq_mean_token_sum": np.full(n, 1 / n),
            "seq_mean_token_sum_norm": np.full(n, 1 / (n * MAX_LENGTH)),
        }[reduction]

    def gradient(self, coefficient: list[np.ndarray]) -> list[Tensor]:
        """d/d theta of the sum of coefficient times log-prob."""
        logps = plain_logps(self.model, self.batch.rollouts)
        loss = sum((torch.from_numpy(c) * lp).sum() for c, lp in zip(coefficient, logps, strict=True))
        assert isinstance(loss, Tensor)
        return list(torch.autograd.grad(loss, list(self.model.parameters())))

    def norm2(self, unit: np.ndarray, only: str = "") -> np.ndarray:
        """||gradient of unit_i sum_t log pi||^2 of each rollout, of the parameters whose name ends with ``only``."""
        chosen = [p for name, p in self.model.named_parameters() if name.endswith(only)]
        out = []
        for r, u in zip(self.batch.rollouts, unit, strict=True):
            (logp,) = plain_logps(self.model, [r])
            out.append(float(sum(g.square().sum() for g in torch.autograd.grad(u * logp.sum(), chosen))))
        return np.array(out)

    def optimal(
        self, std: str, reduction: str, *, weighting: str = "paper", scope: str = "group", loo: bool = False, only: str = ""
    ) -> Any:
        """OPOB's advantage."""
        unit = np.ones(len(self.reward)) if weighting == "paper" else np.minimum(self.weight, CAP) * self.factor(reduction)
        W = self.norm2(unit, only) * (self.weight**2 if weighting == "paper" else 1) * (self.scale(std) ** 2 if scope == "batch" else 1)

        def advantage(i: np.ndarray) -> np.ndarray:
            r, w = self.reward[i], W[i]
            if not loo:
                return r - np.average(r, weights=w)
            return np.array([r[j] - np.average(np.delete(r, j), weights=np.delete(w, j)) for j in range(len(i))])

        return (self.groups(advantage) if scope == "group" else advantage(np.arange(len(self.reward)))) * self.scale(std)


@cache
def known(spread: float = 0.6) -> Known:
    model = tiny_model()
    batch = make_batch(model, spread=spread)
    logps = [lp.detach().double() for lp in plain_logps(model, batch.rollouts)]
    weight = [float((lp - behavior(r)).sum().exp()) for lp, r in zip(logps, batch.rollouts, strict=True)]
    return Known(
        model,
        batch,
        tuple(lp.numpy() for lp in logps),
        np.array(weight),
        np.array([x for row in MIXED for x in row], dtype=np.float64),
        np.repeat(np.arange(len(MIXED)), [len(row) for row in MIXED]),
        np.array([r.actions for r in batch.rollouts]),
    )


def wanted(k: Known, advantage: np.ndarray | list[np.ndarray], reduction: str) -> list[Tensor]:
    """The gradient of -w A log pi under this reduction; ``advantage`` a rollout or a token."""
    w = np.minimum(k.weight, CAP) * k.factor(reduction)
    return k.gradient([-w_i * (a_i * np.ones(n)) for w_i, a_i, n in zip(w, advantage, k.length, strict=True)])


def rloo(k: Known) -> np.ndarray:
    return k.groups(lambda i: k.reward[i] - (k.reward[i].sum() - k.reward[i]) / (len(i) - 1))


ROLLOUT_CREDIT: dict[str, Callable[[Known], np.ndarray]] = {
    "rloo": rloo,
    "reinforce": lambda k: k.reward,
    "opo": lambda k: k.groups(lambda i: k.reward[i] - np.average(k.reward[i], weights=k.length[i])),
}
SCALED_CREDIT: dict[str, Callable[[Known], np.ndarray]] = {
    "grpo": lambda k: k.groups(lambda i: k.reward[i] - k.reward[i].mean()),
    "b0": lambda k: k.reward,
    "group_min": lambda k: k.groups(lambda i: k.reward[i] - k.reward[i].min()),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ROLLOUT_CREDIT)
def test_credit_without_a_scale(name: str, reduction: str) -> None:
    k = known()
    got = gradient_of(k.model, ["seq_tis", name], k.batch, reduction=reduction)
    assert worst(got, wanted(k, ROLLOUT_CREDIT[name](k), reduction)) < 1e-10


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("std", STDS)
@pytest.mark.parametrize("name", SCALED_CREDIT)
def test_credit_with_a_scale(name: str, std: str, reduction: str) -> None:
    k = known()
    got = gradient_of(k.model, ["seq_tis", {"name": name, "std": std}], k.batch, reduction=reduction)
    assert worst(got, wanted(k, SCALED_CREDIT[name](k) * k.scale(std), reduction)) < 1e-10


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("std", STDS)
@pytest.mark.parametrize("scope", ["group", "batch"])
@pytest.mark.parametrize("weighting", ["paper", "exact"])
def test_opob_with_every_scale_scope_and_reduction(weighting: str, scope: str, std: str, reduction: str) -> None:
    """GRPO's scaling, RLOO's and plain REINFORCE's absence of one, Dr.GRPO's constant denominator."""
    k = known()
    methods = ["vcpo", {"name": "opob", "weighting": weighting, "std": std, "scope": scope}]
    want = wanted(k, k.optimal(std, reduction, weighting=weighting, scope=scope), reduction)
    assert worst(gradient_of(k.model, methods, k.batch, reduction=reduction), want) < 1e-9


def test_opob_leave_one_out() -> None:
    k = known()
    want = wanted(k, k.optimal("none", REDUCTIONS[0], loo=True), REDUCTIONS[0])
    methods = ["vcpo", {"name": "opob", "std": "none", "leave_one_out": True}]
    for norms in ("bookkeeping", "two_pass"):
        assert worst(gradient_of(k.model, methods, k.batch, norms=norms), want) < 1e-9
    with pytest.raises(TrimtabError, match="coefficients of group 0 are not affine in the reward"):
        gradient_of(k.model, methods, k.batch, norms="two_buffer")


@pytest.mark.parametrize("micro_tokens", [None, 60, 1])
@pytest.mark.parametrize("weighting", ["paper", "exact"])
def test_opob_by_the_norm_of_the_last_layer(weighting: str, micro_tokens: int | None) -> None:
    k = known()
    want = wanted(k, k.optimal("group", REDUCTIONS[0], weighting=weighting, only="lm_head.weight"), REDUCTIONS[0])
    methods = ["vcpo", {"name": "opob", "weighting": weighting, "norms": "last_layer"}]
    assert worst(gradient_of(k.model, methods, k.batch, micro_tokens=micro_tokens), want) < 1e-9


def test_a_sketch_of_the_head_alone_is_the_last_layer_and_a_deeper_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    k = known()
    last, sketch = (gradient_of(k.model, ["vcpo", {"name": "opob", "norms": n}], k.batch) for n in ("last_layer", "sketch"))
    assert worst(sketch, last) < 1e-12  # a narrow model: nothing but the head is affordable
    monkeypatch.setattr(top, "sketched", lambda *_: 3)
    deeper, split = (gradient_of(k.model, ["vcpo", {"name": "opob", "norms": "sketch"}], k.batch, micro_tokens=m) for m in (None, 60))
    assert 1e-6 < worst(deeper, last) < 1
    assert worst(split, deeper) < 1e-9


# -------------------------------------------------------------------------------------------------------------------- token credit


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reinforce_pp_whitens_over_the_batch(reduction: str) -> None:
    k = known()
    returns = np.repeat(k.reward, k.length)
    whitened = (returns - returns.mean()) / np.sqrt(returns.var(ddof=1) + 1e-8)
    want = wanted(k, np.split(whitened, np.cumsum(k.length)[:-1]), reduction)
    for options in ({}, {"micro_tokens": 60}):
        assert worst(gradient_of(k.model, ["seq_tis", "reinforce_pp"], k.batch, reduction=reduction, **options), want) < 1e-9


def test_several_updates_share_the_batch_s_whitening() -> None:
    k = known()
    learner, capture = make_learner(k.model, ["seq_tis", "reinforce_pp"], updates_per_batch=2, optimizer={"lr": 1e-30})
    learner.train(k.batch)
    returns = np.repeat(k.reward, k.length)
    whitened = np.split((returns - returns.mean()) / np.sqrt(returns.var(ddof=1) + 1e-8), np.cumsum(k.length)[:-1])
    w = np.minimum(k.weight, CAP) / (len(k.reward) / 2 * k.length)
    for half, got in enumerate(capture.seen):
        mine = k.group // 2 == half
        assert worst(got, k.gradient([-w_i * a * m for w_i, a, m in zip(w, whitened, mine, strict=True)])) < 1e-9


@pytest.mark.parametrize("micro_tokens", [None, 60, 1])
def test_otb_weighs_by_logit_energy(micro_tokens: int | None) -> None:
    k = known()
    energy = []
    for r, w in zip(k.batch.rollouts, np.minimum(k.weight, CAP), strict=True):
        steps = []
        for s in r.segments:
            ids = torch.from_numpy(s.tokens).long()[None]
            p = torch.softmax(k.model(input_ids=ids).logits[0, :-1].detach().double(), -1)[torch.from_numpy(s.action_mask[1:])]
            chosen = p.gather(1, ids[0, 1:][torch.from_numpy(s.action_mask[1:])][:, None])[:, 0]
            steps.append(((1 - 2 * chosen + p.square().sum(1)) * w**2).numpy())
        energy.append(np.cumsum(np.concatenate(steps)))
    advantage = []
    for i, n in enumerate(k.length):
        there = [[j for j in np.flatnonzero(k.group == k.group[i]) if k.length[j] > t] for t in range(n)]
        b = [np.average(k.reward[js], weights=[energy[j][t] for j in js]) for t, js in enumerate(there)]
        advantage.append(k.reward[i] - np.array(b))
    got = gradient_of(k.model, ["seq_tis", "otb"], k.batch, micro_tokens=micro_tokens)
    assert worst(got, wanted(k, advantage, REDUCTIONS[0])) < 1e-8


# ------------------------------------------------------------------------------------------------------------------------ passes


class Counting:
    """Counts the rollouts that pass through the model with and without a graph, and stays the model."""

    def __init__(self, learner: Any) -> None:
        self.graph: list[int] = []
        self.norms: list[int] = []
        self.scored: list[int] = []
        forward, score = learner.model.forward, learner.model.score

        def counted(packed: Packed, *, norms: bool = False, vocab: bool = False) -> Pass:
            into = self.norms if norms else self.graph if torch.is_grad_enabled() else self.scored
            into.append(len(packed.rollouts))
            return forward(packed, norms=norms, vocab=vocab)  # type: ignore[no-any-return]

        def scored(packed: Packed) -> Tensor:
            self.scored.append(len(packed.rollouts))
            return score(packed)  # type: ignore[no-any-return]

        learner.model.forward, learner.model.score = counted, scored


def passes(methods: list[Any], **options: Any) -> Counting:
    k = known()
    learner, _ = make_learner(k.model, methods, **options)
    counting = Counting(learner)
    learner.train(k.batch)
    return counting


@pytest.mark.parametrize(
    "credit",
    [
        "grpo",
        "rloo",
        "b0",
        "opo",
        "group_min",
        {"name": "grpo", "std": "batch"},
        {"name": "group_min", "std": "none"},
        {"name": "opob", "norms": "length"},
    ],
    ids=str,
)
def test_groups_of_equal_rewards_cost_a_scoring_and_no_backward(credit: Any) -> None:
    """Of 16 rollouts in 4 groups, 4 in one group have equal rewards."""
    c = passes(["seq_tis", "linear", credit])
    assert (sum(c.graph), sum(c.norms), sum(c.scored)) == (12, 0, 4)


@pytest.mark.parametrize("norms", ["exact", "sketch", "last_layer"])
@pytest.mark.parametrize("options", [{}, {"scope": "batch"}, {"std": "none"}, {"leave_one_out": True}], ids=str)
def test_under_norms_too(norms: str, options: dict[str, Any]) -> None:
    c = passes(["vcpo", {"name": "opob", "norms": norms, **options}])
    assert (c.norms, c.graph, c.scored) == ([12], [], [4])


@pytest.mark.parametrize("credit", ["reinforce", {"name": "b0", "std": "none"}, "reinforce_pp", "otb"], ids=str)
def test_where_equal_rewards_may_push_they_get_their_backward(credit: Any) -> None:
    c = passes(["seq_tis", "linear", credit])
    assert (sum(c.graph), sum(c.norms), sum(c.scored)) == (16, 0, 0)


@pytest.mark.parametrize("std", ["batch", "none"])
def test_a_baseline_of_the_batch_pushes_them_unless_their_own_std_silences_them(std: str) -> None:
    assert passes(["vcpo", {"name": "opob", "scope": "batch", "std": std}]).norms == [16]


@pytest.mark.parametrize("norms", ["exact", "sketch", "last_layer", "length"])
@pytest.mark.parametrize("std", ["group", "none"])
def test_one_baseline_over_split_micro_batches(norms: str, std: str) -> None:
    """Whole groups in several micro-batches: the baseline of the batch needs all of them before any backward."""
    k = known()
    methods = ["vcpo", {"name": "opob", "scope": "batch", "std": std, "norms": norms}]
    want = gradient_of(k.model, methods, k.batch)
    for micro_tokens in (1, 60, 120):
        assert worst(gradient_of(k.model, methods, k.batch, micro_tokens=micro_tokens), want) < 1e-9
    c = passes(methods, micro_tokens=120)
    live = 12 if std == "group" else 16
    assert len(c.graph) > 1
    assert sum(c.graph) == live
    assert sum(c.norms) == (0 if norms == "length" else live)
