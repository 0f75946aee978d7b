"""Updates of a tiny model: batches of moderate importance ratios, a learner that hands its gradient over, plain log-probs beside it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from support.rollouts import segment
from support.tiny import tiny_policy
from support.views import setting
from trimtab.control.chain import Chain
from trimtab.control.protocol import GradientMethod, Keep, Need, Skip
from trimtab.control.registry import ChainMember, MethodEntry
from trimtab.engines.vocabulary import Vocabulary
from trimtab.learner.options import LearnerOptions
from trimtab.learner.passes import PackedModel
from trimtab.learner.update import Learner
from trimtab.records import Batch, Group, Outcome, Rollout, Segment, Slot, StopReason

MAX_LENGTH = 12
MIXED = [[1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 1, 1], [1, 0.5, 0, 0]]  # rewards, group by group; the third is silent


def tiny_model(dtype: torch.dtype = torch.float64, *, tied: bool = False, seed: int = 0, padding: int = 0) -> nn.Module:
    """A tiny Qwen2; in float64 with norms that are exact."""
    model = tiny_policy(tied, dtype=dtype, seed=seed, hidden=16, intermediate=24, padding=padding).model
    return exact_norms(model) if dtype == torch.float64 else model


def exact_norms(model: nn.Module) -> nn.Module:
    """``model`` with torch's RMSNorm, in place: Qwen2's own rounds to float32 inside."""
    for name, old in list(model.named_modules()):
        if isinstance(old, Qwen2RMSNorm):
            new = nn.RMSNorm(old.weight.shape[0], eps=old.variance_epsilon, dtype=old.weight.dtype)
            new.weight = old.weight
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, new)
    return model


def plain_logps(model: nn.Module, rollouts: Sequence[Rollout]) -> list[Tensor]:
    """log p of every action token under the plain model on one right-padded batch, rollout by rollout, with its graph."""
    segments = [s for r in rollouts for s in r.segments]
    width = max(len(s.tokens) for s in segments)
    ids, seen = torch.zeros(len(segments), width, dtype=torch.int64), torch.zeros(len(segments), width, dtype=torch.int64)
    for i, s in enumerate(segments):
        ids[i, : len(s.tokens)], seen[i, : len(s.tokens)] = torch.from_numpy(s.tokens).long(), 1
    logits = model(input_ids=ids, attention_mask=seen).logits
    logp = torch.log_softmax(logits[:, :-1], -1).gather(2, ids[:, 1:, None])[..., 0]
    parts = [logp[i, : len(s.tokens) - 1][torch.from_numpy(s.action_mask[1:])] for i, s in enumerate(segments)]
    out, first = [], 0
    for r in rollouts:
        out.append(torch.cat(parts[first : first + len(r.segments)]))
        first += len(r.segments)
    return out


def make_batch(
    model: nn.Module, rewards: Sequence[Sequence[float]] = MIXED, *, seed: int = 0, spread: float = 0.15, number: int = 0, version: int = 3
) -> Batch:
    """Ragged rollouts, every fifth of two segments, with ``behavior_logp`` = the model's log-probs plus normal noise of ``spread``."""
    rng = np.random.default_rng(seed)
    groups = []
    for g, row in enumerate(rewards):
        members = []
        for i, reward in enumerate(row):
            parts = [segment(rng, "." * int(rng.integers(2, 8)) + "a" * int(rng.integers(1, MAX_LENGTH)))]
            if (4 * g + i) % 5 == 4:
                parts.append(segment(rng, "..aa.a", turn=1))
            members.append(Rollout(member=i, segments=tuple(parts), score=reward, outcome=Outcome.WRONG, stop=StopReason.EOS))
        groups.append(group(g, members))
    flat = [r for gr in groups for r in gr.rollouts]
    with torch.no_grad():
        logps = plain_logps(model, flat)
    shifted = [lp.double().numpy() + spread * rng.normal(size=len(lp)) for lp in logps]
    return Batch(number=number, version=version, groups=tuple(with_behavior(groups, shifted)))


def group(index: int, members: Sequence[Rollout]) -> Group:
    return Group(slot=Slot(0, index), prompt=index, attempt=0, seed=0, task="t", source="t", rollouts=tuple(members))


def with_behavior(groups: Sequence[Group], logps: Sequence[np.ndarray]) -> list[Group]:
    """The groups with these behavior log-probs, rollout by rollout."""
    left = iter(logps)
    return [map_rollouts(g, lambda r: _behave(r, next(left))) for g in groups]


def map_rollouts(g: Group, f: Callable[[Rollout], Rollout]) -> Group:
    return dataclasses.replace(g, rollouts=tuple(f(r) for r in g.rollouts))


def _behave(r: Rollout, logp: np.ndarray) -> Rollout:
    segments, first = [], 0
    for s in r.segments:
        column = np.zeros(len(s.tokens), np.float32)
        column[s.action_mask] = logp[first : first + s.actions]
        first += s.actions
        segments.append(dataclasses.replace(s, behavior_logp=column))
    return dataclasses.replace(r, segments=tuple(segments))


def map_segments(g: Group, f: Callable[[Segment], Segment]) -> Group:
    return map_rollouts(g, lambda r: dataclasses.replace(r, segments=tuple(f(s) for s in r.segments)))


def behavior(r: Rollout) -> Tensor:
    return torch.from_numpy(np.concatenate([s.behavior_logp[s.action_mask] for s in r.segments]).astype(np.float64))


class Capture(GradientMethod):
    """Keeps the gradient it sees first at the gradient point; ``stop`` refuses the step after that."""

    name = "capture"

    def __init__(self, stop: bool) -> None:
        self.stop = stop
        self.seen: list[list[Tensor]] = []

    def gradient(self, g: Any) -> Keep | Skip:
        self.seen.append([p.clone() for p in g.parts])
        return Skip("captured") if self.stop else Keep()


def make_chain(methods: Sequence[str | dict[str, Any]], *, stop: bool = True, **where: Any) -> tuple[Chain, Capture]:
    entries = [MethodEntry(name=m) if isinstance(m, str) else MethodEntry.model_validate(m) for m in methods]
    chain, capture = Chain.resolve(entries, setting(**where)), Capture(stop)
    chain.members.insert(0, ChainMember(capture, ""))
    return chain, capture


def make_learner(
    model: nn.Module,
    methods: Sequence[str | dict[str, Any]],
    *,
    stop: bool = False,
    where: dict[str, Any] | None = None,
    ids: Vocabulary | None = None,
    **options: Any,
) -> tuple[Learner, Capture]:
    """A learner of a copy of ``model``; another copy of it is the reference, where a method needs one."""
    chosen = LearnerOptions.model_validate(options)
    chain, capture = make_chain(methods, stop=stop, reduction=chosen.reduction, **(where or {}))
    packed = PackedModel(copy.deepcopy(model), route=chosen.norms, estimator=chain.norm_estimator, ids=ids)  # type: ignore[arg-type]
    reference = PackedModel(copy.deepcopy(model), ids=ids) if Need.REFERENCE in chain.needs else None
    return Learner(packed, chain.learner(), chosen, max_length=MAX_LENGTH, reference=reference), capture


def gradient_of(model: nn.Module, methods: Sequence[str | dict[str, Any]], batch: Batch, **options: Any) -> list[Tensor]:
    """The finished gradient of the update, one tensor a parameter; nothing is stepped."""
    learner, capture = make_learner(model, methods, stop=True, **options)
    learner.train(batch)
    (gradient,) = capture.seen
    return gradient


def worst(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """Largest difference of a tensor, relative to its norm."""
    assert len(got) == len(want)
    return max(float((a - b).detach().norm() / b.detach().norm()) for a, b in zip(got, want, strict=True))


def weights(learner: Learner) -> list[Tensor]:
    return [p.detach().clone() for p in learner.model.parameters()]


def identical(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def state(learner: Learner) -> list[Tensor]:
    """Weights, moments and the schedule's count: everything of the optimizer."""
    saved: Any = learner.optimizer.state_dict()
    moments = [v for m in saved["moments"] for v in m.values()]
    return [*weights(learner), *moments, torch.tensor([saved["applied"], learner.applied_batches])]
