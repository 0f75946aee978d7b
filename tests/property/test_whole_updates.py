"""Any term × shaping × objective × credit × std, with groups of equal rewards among the others, against one naive loop over rollouts.

The loop knows no micro-batch, no silent group and no order of passes: one forward a rollout, the published formulas, one backward.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from support.updates import behavior, make_batch, make_learner, plain_logps, tiny_model, worst
from trimtab.learner.passes import PackedModel
from trimtab.records import Batch, Rollout

SHAPING: list[dict[str, Any] | None] = [
    None,
    {"name": "overlong", "max_length": 10, "buffer": 6, "factor": 0.7},
    {"name": "kl_reward", "beta": 0.05, "estimator": "k1"},
    {"name": "kl_reward", "beta": 0.05, "estimator": "k3"},
]
KL = {"name": "kl_term", "beta": 0.04}
TERMS: list[list[dict[str, Any]]] = [
    [],
    [{**KL, "estimator": "k1", "unbiased": True}],
    [{**KL, "estimator": "k2"}],
    [{**KL, "estimator": "k3"}],
    [{"name": "entropy_term", "coefficient": 0.01}],
    [{**KL, "estimator": "k3"}, {"name": "entropy_term", "coefficient": 0.01}],
]
STD = ["group", "population", "batch", "none"]
CREDIT = ["grpo", "group_min", "b0", "rloo", "reinforce", "opob paper", "opob exact"]
ROWS = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 0.3]).flatmap(lambda r: st.sampled_from([[r] * 3, [r, r * (1 + 1.2e-7), r + 1e-9]])),  # equal
    st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.5, 0.9]), min_size=2, max_size=4),
)


@cache
def models() -> tuple[nn.Module, nn.Module]:
    """The policy, and a reference a little away from it: no exponential is clamped."""
    policy, other = tiny_model(), tiny_model()
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=noise, dtype=p.dtype))
    return policy, other


def gap(r: np.ndarray) -> bool:
    return bool(max(r) - min(r) <= max(1e-8, 1e-6 * max(abs(r))))


def divisor(r: np.ndarray, std: str) -> float:
    """1/sigma; 0 where the rewards are equal."""
    if std == "none":
        return 1.0
    if gap(r) or len(r) < 2:
        return 0.0
    return 1 / r.std() if std == "population" else 1 / (r.std(ddof=1) + 1e-6)


def kl(estimator: str, d: Tensor) -> Tensor:
    return {"k1": -d, "k2": d * d / 2, "k3": d.exp() - 1 - d}[estimator]


class Naive:
    """What one rollout after another says of the batch."""

    def __init__(self, batch: Batch) -> None:
        self.batch, (self.model, self.other) = batch, models()
        self.logp, self.entropy, self.anchor = [], [], []
        for r in batch.rollouts:
            (logp,) = plain_logps(self.model, [r])
            with torch.no_grad():
                (anchor,) = plain_logps(self.other, [r])
            self.logp.append(logp)
            self.anchor.append(anchor)
            self.entropy.append(self._entropies(r))
        self.weight = [float((x.detach() - behavior(r)).sum().exp()) for x, r in zip(self.logp, batch.rollouts, strict=True)]

    def _entropies(self, r: Rollout) -> Tensor:
        parts = []
        for s in r.segments:
            logits = self.model(input_ids=torch.from_numpy(s.tokens).long()[None]).logits[0, :-1]
            logp = torch.log_softmax(logits, -1)[torch.from_numpy(s.action_mask[1:])]
            parts.append(-(logp.exp() * logp).sum(1))
        return torch.cat(parts)

    def rewards(self, shaping: dict[str, Any] | None) -> list[np.ndarray]:
        """What credit reads, group by group."""
        flat = []
        for r, anchor in zip(self.batch.rollouts, self.anchor, strict=True):
            added = 0.0
            if shaping and shaping["name"] == "overlong":
                over = (r.actions - (shaping["max_length"] - shaping["buffer"])) / shaping["buffer"]
                added = -shaping["factor"] * min(1.0, max(0.0, over))
            elif shaping:
                added = -shaping["beta"] * float(kl(shaping["estimator"], anchor - behavior(r)).sum())
            flat.append(r.score + added)
        r_R = np.array(flat)
        return np.split(np.full_like(r_R, r_R[0]) if gap(r_R) else r_R, np.cumsum([len(g.rollouts) for g in self.batch.groups])[:-1])

    def advantages(self, credit: str, std: str, rewards: list[np.ndarray]) -> list[float]:
        everything, out, first = np.concatenate(rewards), [], 0
        for r in rewards:
            if gap(r):
                r = np.full_like(r, r[0])
            scale = divisor(everything if std == "batch" else r, std)
            places = range(first, first + len(r))
            first += len(r)
            n = len(r)
            if credit in ("grpo", "rloo"):
                a = 0 * r if gap(r) else (r - r.mean()) * (n / max(n - 1, 1) if credit == "rloo" else 1)
            elif credit == "group_min":
                a = r - r.min()
            elif credit.startswith("opob"):
                W = np.array([self.contribution(i, exact=credit.endswith("exact")) for i in places])
                a = 0 * r if gap(r) else r - (W * r).sum() / W.sum()
            else:
                a = r
            out += list(a * (scale if credit not in ("rloo", "reinforce") else 1.0))
        return out

    def contribution(self, i: int, *, exact: bool) -> float:
        norm2 = sum(
            float(g.square().sum()) for g in torch.autograd.grad(self.logp[i].sum(), list(self.model.parameters()), retain_graph=True)
        )
        w = min(self.weight[i], 8.0) / len(self.logp[i]) if exact else self.weight[i]
        return w * w * norm2

    def gradient(self, objective: str, advantage: list[float], terms: list[dict[str, Any]]) -> list[Tensor]:
        losses = []
        for i, r in enumerate(self.batch.rollouts):
            logp, mu, a = self.logp[i], behavior(r), advantage[i]
            d = logp - mu
            if objective == "kimi":
                loss = -a * logp + 0.05 * d**2
            elif objective == "ppo_clip":
                loss = torch.maximum(-a * d.exp(), -a * d.exp().clamp(0.8, 1.2))
            else:
                loss = -min(self.weight[i], 8.0) * a * logp
            for t in terms:
                if t["name"] == "entropy_term":
                    loss = loss - t["coefficient"] * self.entropy[i]
                else:
                    k = kl(t["estimator"], self.anchor[i] - logp)
                    loss = loss + t["beta"] * (k * d.exp() if t.get("unbiased") else k)
            losses.append(loss.mean())
        return list(torch.autograd.grad(torch.stack(losses).mean(), list(self.model.parameters())))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(ROWS, min_size=1, max_size=4),
    credit=st.sampled_from(CREDIT),
    std=st.sampled_from(STD),
    objective=st.sampled_from(["linear", "linear", "kimi", "ppo_clip"]),
    shaping=st.sampled_from(SHAPING),
    terms=st.sampled_from(TERMS),
    micro_tokens=st.sampled_from([None, 40, 1]),
    seed=st.integers(0, 3),
)
def test_the_gradient_of_any_combination_is_that_of_a_naive_loop(
    rows: list[list[float]],
    credit: str,
    std: str,
    objective: str,
    shaping: dict[str, Any] | None,
    terms: list[dict[str, Any]],
    micro_tokens: int | None,
    seed: int,
) -> None:
    if credit.startswith("opob"):
        objective = "linear"  # it re-weighs a gradient that is linear in the advantage
    batch = make_batch(models()[0], rows, seed=seed, spread=0.4)
    naive = Naive(batch)
    want = naive.gradient(objective, naive.advantages(credit, std, naive.rewards(shaping)), terms)
    owner: dict[str, Any] = {"name": credit.split()[0]}
    if credit not in ("rloo", "reinforce"):
        owner["std"] = std
    if credit.startswith("opob"):
        owner["weighting"] = credit.split()[1]
    methods = [*(["seq_tis"] if objective == "linear" else []), objective, owner, *([shaping] if shaping else []), *terms]
    learner, capture = make_learner(models()[0], methods, stop=True, micro_tokens=micro_tokens)
    if learner._tools.reference is not None:
        learner._tools.reference = PackedModel(models()[1])  # type: ignore[arg-type]
    (result,) = learner.train(batch)
    if math.sqrt(sum(float(g.square().sum()) for g in want)) == 0.0:
        assert result.reason.startswith("no_signal")
    else:
        assert result.reason == "capture: captured", result.reason
        assert worst(capture.seen[0], want) < 1e-8


def test_a_kl_term_moves_groups_of_equal_rewards() -> None:
    """The case of the report: rewards 1,1,1,1 and 0,0,0,0 under ``seq_tis, grpo, kl_term`` were refused as no_signal."""
    batch = make_batch(models()[0], [[1, 1, 1, 1], [0, 0, 0, 0]])
    learner, capture = make_learner(models()[0], ["seq_tis", "grpo", {**KL, "estimator": "k3"}], stop=True)
    learner._tools.reference = PackedModel(models()[1])  # type: ignore[arg-type]
    (result,) = learner.train(batch)
    naive = Naive(batch)
    assert result.reason == "capture: captured"
    assert worst(capture.seen[0], naive.gradient("linear", [0.0] * 8, [{**KL, "estimator": "k3"}])) < 1e-10
