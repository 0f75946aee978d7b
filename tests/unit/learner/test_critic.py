"""The learned value function by itself, and inside the learner: what it sees, when it trains, what it never touches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from support.rollouts import ragged, segment
from support.updates import MIXED, group, make_batch, make_learner, tiny_model
from trimtab import functional as F
from trimtab.control.learner_chain import LearnerChain
from trimtab.learner.critic import Critic, Fitted, Reduce, Regression, alone
from trimtab.learner.critic_options import CriticOptions
from trimtab.learner.packing import Packed, pack
from trimtab.learner.passes import PackedModel
from trimtab.records import Batch, Rollout, StopReason

KINDS = ["model", "head"]


def critic_of(policy: nn.Module, **options: Any) -> Critic:
    return Critic(PackedModel(policy), CriticOptions.model_validate(options))  # type: ignore[arg-type]


def stirred(critic: Critic) -> Critic:
    """A critic whose head no longer stands at zero."""
    with torch.no_grad():
        critic.head.weight.copy_(torch.randn(critic.head.weight.shape, generator=torch.Generator().manual_seed(1)))
        critic.head.bias.fill_(0.3)
    return critic


def weights(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def same(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def regression(packed: Packed, seed: int = 0) -> Regression:
    g = torch.Generator().manual_seed(seed)
    n = packed.targets_N.shape[0]
    return Regression(packed, torch.randn(n, generator=g, dtype=torch.float64), torch.zeros(n, dtype=torch.float64))


def plain_values(policy: nn.Module, critic: Critic, rollouts: Sequence[Rollout]) -> list[float]:
    """V of each action token: one unpadded segment at a time, from the hidden state before the token."""
    out: list[float] = []
    for r in rollouts:
        for s in r.segments:
            hidden = policy.model(input_ids=torch.from_numpy(s.tokens.astype(np.int64))[None]).last_hidden_state[0]
            out += (hidden[np.flatnonzero(s.action_mask) - 1] @ critic.head.weight[0] + critic.head.bias).tolist()
    return out


# ------------------------------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_read_where_its_token_is_predicted(kind: str) -> None:
    policy, rollouts = tiny_model(), ragged(np.random.default_rng(0), 9)
    critic = critic_of(policy, kind=kind)
    assert not critic.values(pack(rollouts)).any()  # the head starts at zero
    stirred(critic)
    packed = pack(rollouts, dtype=torch.float64)
    np.testing.assert_allclose(critic.values(packed), plain_values(policy, critic, rollouts), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_the_token_limit_cut_goes_on_with_a_value(kind: str) -> None:
    rng, policy = np.random.default_rng(1), tiny_model()
    stops = [StopReason.LENGTH, StopReason.EOS, StopReason.LENGTH, StopReason.LENGTH]
    rollouts = [dataclasses.replace(r, stop=s) for r, s in zip(ragged(rng, 4), stops, strict=True)]
    rollouts[2] = dataclasses.replace(rollouts[2], segments=(segment(rng, "...."),))  # no action token
    packed = pack(rollouts, dtype=torch.float64)
    assert stirred(critic_of(policy, kind=kind)).boot(packed).tolist() == [0.0] * 4
    critic = stirred(critic_of(policy, kind=kind, bootstrap=True))

    def after(r: Rollout) -> float:
        hidden = policy.model(input_ids=torch.from_numpy(r.segments[-1].tokens.astype(np.int64))[None]).last_hidden_state[0, -1]
        return (hidden @ critic.head.weight[0] + critic.head.bias).item()

    np.testing.assert_allclose(critic.boot(packed), [after(rollouts[0]), 0.0, 0.0, after(rollouts[3])], rtol=1e-10)


# ------------------------------------------------------------------------------------------------------------------ regression


@pytest.mark.parametrize(("kind", "lr"), [("model", 1e-2), ("head", 1e-1)])
def test_it_learns_a_value_function_that_can_be_seen(kind: str, lr: float) -> None:
    """A model: 1 after an even token, else 0. A head: what another head says of the same states."""
    rng, policy = np.random.default_rng(0), tiny_model(torch.float32)
    critic, other = critic_of(policy, kind=kind, optimizer={"lr": lr}), stirred(critic_of(policy, kind="head"))
    found = []
    for _ in range(60):
        packed = pack(ragged(rng, 12))
        even_N = (packed.tokens_P[packed.predict_H][packed.to_N] + 1) % 2
        target_N = even_N.float() if kind == "model" else other.values(packed)
        found.append(critic.fit([Regression(packed, target_N, critic.values(packed))], tokens=len(target_N)))
    explained = [f.explained_variance or 0.0 for f in found]
    assert explained[0] == pytest.approx(0.0, abs=1e-6)
    assert np.mean(explained[-5:]) > 0.7
    assert found[-1].loss < 0.3 * found[0].loss


@pytest.mark.parametrize("kind", KINDS)
def test_the_policy_is_never_touched(kind: str) -> None:
    policy = tiny_model()
    before = weights(policy)
    critic = stirred(critic_of(policy, kind=kind))
    packed = pack(ragged(np.random.default_rng(0), 6), dtype=torch.float64)
    critic.fit([regression(packed)], tokens=packed.targets_N.shape[0])
    assert same(before, weights(policy))
    assert all(p.grad is None for p in policy.parameters())
    owned = sum(p.numel() for p in critic.optimizer.parameters)
    hidden = policy.config.hidden_size
    assert owned == hidden + 1 + (sum(p.numel() for p in policy.model.parameters()) if kind == "model" else 0)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_the_loss_is_a_mean_over_the_tokens_of_the_update(clip: float | None) -> None:
    critic = stirred(critic_of(tiny_model(), value_clip=clip))
    packed = pack(ragged(np.random.default_rng(0), 6), dtype=torch.float64)
    part, value_N = regression(packed), critic.values(packed)
    found = critic.fit([part], tokens=2 * len(value_N))
    assert found.loss == pytest.approx(float(F.traces.value_loss(value_N, part.return_N, part.old_N, clip).sum()) / (2 * len(value_N)))


def test_any_split_into_micro_batches_is_the_same_step() -> None:
    rollouts = ragged(np.random.default_rng(0), 8)
    one, two = stirred(critic_of(tiny_model())), stirred(critic_of(tiny_model()))
    whole = regression(pack(rollouts, dtype=torch.float64))
    n = whole.return_N.shape[0]
    cut = sum(r.actions for r in rollouts[:3])
    parts = [
        Regression(pack(some, dtype=torch.float64), whole.return_N[a:b], whole.old_N[a:b])
        for some, a, b in ((rollouts[:3], 0, cut), (rollouts[3:], cut, n))
    ]
    a, b = one.fit([whole], tokens=n), two.fit(parts, tokens=n)
    assert dataclasses.astuple(a)[2:] == pytest.approx(dataclasses.astuple(b)[2:], rel=1e-10)
    for x, y in zip(one.optimizer.parameters, two.optimizer.parameters, strict=True):
        np.testing.assert_allclose(x.detach(), y.detach(), rtol=1e-9, atol=1e-12)


def test_a_rank_without_rollouts_takes_the_others_step() -> None:
    sent: list[Tensor] = []

    def send(tensors: Sequence[Tensor]) -> None:
        sent.extend(t.clone() for t in tensors)

    def receive(tensors: Sequence[Tensor]) -> None:
        for t, s in zip(tensors, sent, strict=True):
            assert not t.any()
            t.copy_(s)

    one, two = stirred(critic_of(tiny_model())), stirred(critic_of(tiny_model()))
    packed = pack(ragged(np.random.default_rng(0), 8), dtype=torch.float64)
    n = packed.targets_N.shape[0]
    assert one.fit([regression(packed)], tokens=n, reduce=send) == two.fit([], tokens=n, reduce=receive)
    assert same(one.optimizer.parameters, two.optimizer.parameters)


def test_a_broken_target_moves_nothing() -> None:
    critic = stirred(critic_of(tiny_model()))
    packed = pack(ragged(np.random.default_rng(0), 4), dtype=torch.float64)
    part = regression(packed)
    part.return_N[2] = float("nan")
    before = [p.detach().clone() for p in critic.optimizer.parameters]
    found = critic.fit([part], tokens=len(part.return_N))
    assert (found.applied, found.reason) == (False, "non-finite critic loss or gradient")
    assert same(before, critic.optimizer.parameters)
    assert critic.optimizer.applied == 0


@pytest.mark.parametrize("kind", KINDS)
def test_its_state_goes_on_where_it_was(kind: str) -> None:
    policy = tiny_model()
    packed = pack(ragged(np.random.default_rng(0), 6), dtype=torch.float64)
    n = packed.targets_N.shape[0]
    schedule = {"kind": "constant", "warmup": 5}
    one, two = (critic_of(policy, kind=kind, schedule=schedule) for _ in range(2))
    one.fit([regression(packed)], tokens=n)
    two.load_state_dict(one.state_dict())
    assert one.fit([regression(packed, 1)], tokens=n) == two.fit([regression(packed, 1)], tokens=n)
    assert same(one.optimizer.parameters, two.optimizer.parameters)
    other = critic_of(policy, kind="head" if kind == "model" else "model")
    with pytest.raises(ValueError, match="other kind"):
        other.load_state_dict(one.state_dict())


# ------------------------------------------------------------------------------------------------------------------ in the learner


class Recording:
    """A value function that says 0.25 everywhere and writes down what it is asked."""

    label = "critic"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.parts: list[Regression] = []

    def values(self, packed: Packed) -> Tensor:
        self.calls.append("values")
        return torch.full_like(packed.behavior_N, 0.25)

    def boot(self, packed: Packed) -> Tensor:
        self.calls.append("boot")
        return torch.zeros(len(packed.rollouts), dtype=torch.float64)

    def fit(self, parts: Sequence[Regression], *, tokens: int, reduce: Reduce = alone) -> Fitted:
        self.calls.append(f"fit {tokens}")
        self.parts += parts
        return Fitted(applied=True, reason="", loss=0.0, explained_variance=None, grad_norm=0.0, lr=0.0)

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        assert not state


def test_values_once_a_batch_then_the_critics_updates_after_each_of_the_actors() -> None:
    model, critic = tiny_model(), Recording()
    learner, _ = make_learner(model, ["async_ppo"], updates_per_batch=2, epochs=2, critic={"updates": 3})
    learner._tools.critic = critic
    batch = make_batch(model, MIXED)
    learner.train(batch)
    tokens = [sum(r.actions for g in groups for r in g.rollouts) for groups in (batch.groups[:2], batch.groups[2:])]
    fits = [f"fit {n}" for n in tokens for _ in range(3)]
    assert critic.calls == ["values", "boot"] * 2 + fits * 2
    rollouts = [r for g in batch.groups for r in g.rollouts]
    want = np.concatenate([np.full(r.actions, r.score) for r in rollouts])
    # Two passes of two updates of three fits; the targets are those of the batch's start in every one of them.
    firsts = np.concatenate([np.asarray(p.return_N) for p in (critic.parts[0], critic.parts[3])])
    lasts = np.concatenate([np.asarray(p.return_N) for p in (critic.parts[8], critic.parts[11])])
    np.testing.assert_allclose(firsts, want, atol=1e-12)
    assert np.array_equal(firsts, lasts)
    assert all(bool((p.old_N == 0.25).all()) for p in critic.parts)


@pytest.mark.parametrize("kind", KINDS)
def test_in_its_warm_up_only_the_critic_trains(kind: str) -> None:
    model = tiny_model()
    learner, _ = make_learner(model, ["copc"], updates_per_batch=2, critic={"warmup": 2, "kind": kind})
    before = weights(learner.model.model)
    critic = learner.critic
    assert isinstance(critic, Critic)
    for number in range(2):
        results = learner.train(make_batch(model, MIXED, number=number))
        assert [r.reason for r in results] == ["critic warm-up"] * 2
        assert all("critic/loss" in r.notes.metrics for r in results)
    assert same(before, weights(learner.model.model))
    assert (critic.optimizer.applied, learner.optimizer.applied, learner.applied_batches) == (4, 0, 0)
    assert all(r.applied for r in learner.train(make_batch(model, MIXED, number=2)))
    assert not same(before, weights(learner.model.model))


def test_the_critic_trains_where_the_actor_has_no_signal() -> None:
    model = tiny_model()
    learner, _ = make_learner(model, [{"name": "gae", "whiten": False}, "ppo_clip"])
    critic = learner.critic
    assert isinstance(critic, Critic)
    (result,) = learner.train(make_batch(model, [[0, 0], [0, 0]]))
    assert result.reason.startswith("no_signal")
    assert critic.optimizer.applied == 1


def test_truncation_with_bootstrap_changes_the_return_and_nothing_else_does() -> None:
    model = tiny_model()
    batch = make_batch(model, [[0, 0], [0, 0]])
    cut = dataclasses.replace(batch.groups[0].rollouts[0], stop=StopReason.LENGTH)
    groups = (group(0, [cut, batch.groups[0].rollouts[1]]), batch.groups[1])
    chosen = [{"name": "gae", "whiten": False}, "ppo_clip"]
    for bootstrap in (False, True):
        learner, _ = make_learner(model, chosen, critic={"bootstrap": bootstrap})
        critic = learner.critic
        assert isinstance(critic, Critic)
        with torch.no_grad():
            critic.head.bias.fill_(2.0)
        seen: list[Regression] = []
        plain = critic.fit

        def fit(
            parts: Sequence[Regression], *, tokens: int, reduce: Reduce = alone, seen: list[Regression] = seen, plain: Any = plain
        ) -> Fitted:
            seen.extend(parts)
            fitted: Fitted = plain(parts, tokens=tokens, reduce=reduce)
            return fitted

        critic.fit = fit  # type: ignore[method-assign]
        learner.train(Batch(number=0, version=3, groups=groups))
        returns = seen[0].return_N
        n = cut.actions
        assert torch.equal(returns[:n], torch.full_like(returns[:n], 2.0 if bootstrap else 0.0))
        assert not returns[n:].any()


def test_options_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="value_clip"):
        CriticOptions.model_validate({"value_clip": 0.0})
    with pytest.raises(ValueError, match="kind"):
        CriticOptions.model_validate({"kind": "oracle"})
    assert CriticOptions().optimizer.lr == CriticOptions.model_validate({"optimizer": {"eps": 1e-5}}).optimizer.lr == 1e-3


def test_a_chain_without_values_has_no_critic() -> None:
    learner, _ = make_learner(tiny_model(), ["seq_tis"])
    assert isinstance(learner.chain, LearnerChain)
    assert learner.critic is None
    assert learner.state_dict()["critic"] is None
