"""A learned value function: its own copy of the policy's trunk, or a linear head on the policy's detached hidden states.

V at an action token is the value of the state *before* it: the hidden state that predicts the token, through a linear head that starts
at zero. Observation tokens have no value. The loss is 0.5 mean over the action tokens of the update of (V - R)^2, or of the larger of that
and (clip(V, V_old - c, V_old + c) - R)^2 under ``value_clip`` (the pessimistic clip of PPO's reference code).

``head`` costs a forward of the policy each time and no parameters to speak of; its gradient never reaches the policy. ``model`` costs a
second set of weights and moments, and a forward and backward of its own.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from trimtab import functional as F
from trimtab.learner.attention import hidden_states
from trimtab.learner.critic_options import CriticOptions
from trimtab.learner.layout import BlockLayout
from trimtab.learner.optimizer import ScheduledAdamW
from trimtab.learner.packing import Packed
from trimtab.learner.passes import PackedModel
from trimtab.plugins import attribute
from trimtab.records import StopReason
from trimtab.tasks.options import PromptOptions

Reduce = Callable[[Sequence[Tensor]], None]


@dataclass(frozen=True, slots=True)
class Regression:
    """A micro-batch of a fit: V should be ``return_N``; ``old_N`` is what :meth:`ValueFunction.values` said at the batch's start."""

    packed: Packed
    return_N: Tensor
    old_N: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What one critic update did. ``explained_variance`` 1 - Var[R - V] / Var[R], of V before the step; None where R is constant."""

    applied: bool
    reason: str  # "" where applied
    loss: float
    explained_variance: float | None
    grad_norm: float  # before the clip
    lr: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a critic may know of the run beside the policy."""

    task: PromptOptions
    decode: Callable[[Sequence[int]], str]  # the text of tokens, without special ones
    positions: int  # most action tokens of a rollout


class ValueFunction(Protocol):
    """What the learner needs of a critic. Columns ``_N`` are in rollout order, in the dtype of the packed log-probs."""

    @property
    def label(self) -> str:
        """Prefix of its metrics: ``critic`` for one that learns from what the policy sees."""

    def values(self, packed: Packed) -> Tensor:
        """V_N, detached."""

    def boot(self, packed: Packed) -> Tensor:
        """float64[R]: the value after the last token of a rollout that the token limit cut, where ``bootstrap`` is on; else 0."""

    def fit(self, parts: Sequence[Regression], *, tokens: int, reduce: Reduce) -> Fitted:
        """One optimizer step over all micro-batches. ``tokens``: action tokens of the whole update, all ranks.

        ``reduce`` sums tensors over ranks in place; every rank calls ``fit`` equally often, with no parts where it has none.
        """

    def state_dict(self) -> dict[str, object]: ...
    def load_state_dict(self, state: dict[str, object]) -> None: ...


def make_critic(policy: PackedModel, options: CriticOptions, told: Told | None) -> ValueFunction:
    """The critic of these options.

    Raises:
        ValueError: its kind must be told about the run, and ``told`` is None.
    """
    made_by = cast(Callable[[PackedModel, CriticOptions, Told | None], ValueFunction], attribute(options.made_by))
    return made_by(policy, options, told)


def make(policy: PackedModel, options: CriticOptions, told: Told | None) -> ValueFunction:
    """A learned one, which is told nothing."""
    return Critic(policy, options)


def alone(tensors: Sequence[Tensor]) -> None:
    """Sums over one rank: nothing to do."""


class Regressing(ABC):
    """A critic that is fitted by AdamW: one optimizer step an update, refused where it is not finite."""

    label = "critic"
    options: CriticOptions
    optimizer: ScheduledAdamW

    @abstractmethod
    def _values(self, packed: Packed) -> Tensor:
        """V_N with its graph."""

    @torch.no_grad()
    def values(self, packed: Packed) -> Tensor:
        return self._values(packed)

    def fit(self, parts: Sequence[Regression], *, tokens: int, reduce: Reduce = alone) -> Fitted:
        self.optimizer.zero_grad()
        seen = torch.zeros(5, dtype=torch.float64, device=self.optimizer.parameters[0].device)
        for part in parts:
            value_N = self._values(part.packed)
            loss = F.traces.value_loss(value_N, part.return_N, part.old_N, self.options.value_clip).sum() / tokens
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.collect()
            seen += _sums(loss, value_N, part.return_N)
        gradients = []
        for p in self.optimizer.masters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            gradients.append(p.grad)
        reduce([*gradients, seen])
        fitted = self._step(gradients, seen.tolist(), tokens)
        self.optimizer.zero_grad()
        return fitted

    def _step(self, gradients: Sequence[Tensor], seen: Sequence[float], tokens: int) -> Fitted:
        norm, lr = F.gradients.global_norm(gradients), self.optimizer.lr
        reason = "" if math.isfinite(norm) and math.isfinite(seen[0]) else "non-finite critic loss or gradient"
        if not reason:
            factor = F.gradients.clip_factor(norm, self.options.max_norm)
            for g in gradients:
                g.mul_(factor)
            self.optimizer.step(1.0)
        return Fitted(
            applied=not reason,
            reason=reason,
            loss=seen[0],
            explained_variance=F.traces.explained_variance(tokens, *seen[1:]),
            grad_norm=norm,
            lr=lr,
        )


class Critic(Regressing):
    """The learned :class:`ValueFunction`."""

    def __init__(self, policy: PackedModel, options: CriticOptions) -> None:
        self.options = options
        trunk = cast("PreTrainedModel", policy.model.base_model)
        # A plain list: the policy's trunk must not become a part of this one's parameters or state.
        self._trunk = copy.deepcopy(trunk) if options.kind == "model" else trunk
        self._own = [self._trunk] if options.kind == "model" else []
        for module in self._own:
            module.requires_grad_(True)
        dtype = torch.promote_types(policy.dtype, torch.float32)
        self.head = nn.Linear(trunk.config.hidden_size, 1, dtype=dtype, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        owned = nn.ModuleList([*self._own, self.head])
        self.optimizer = ScheduledAdamW(owned.parameters(), options.optimizer, options.schedule)

    # ------------------------------------------------------------------------------------------------ values
    def _values(self, packed: Packed) -> Tensor:
        hidden_P = self._hidden(packed.tokens_P, packed.positions_P, packed.segments)
        return self._head(hidden_P.index_select(0, packed.predict_H))[packed.to_N].to(packed.behavior_N.dtype)

    def _hidden(self, tokens_P: Tensor, positions_P: Tensor, layout: BlockLayout) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and bool(self._own)):
            return hidden_states(self._trunk, tokens_P, positions_P, layout)

    def _head(self, hidden: Tensor) -> Tensor:
        value: Tensor = self.head(hidden.to(self.head.weight.dtype))
        return value[:, 0]

    @torch.no_grad()
    def boot(self, packed: Packed) -> Tensor:
        boot_R = torch.zeros(len(packed.rollouts), dtype=torch.float64, device=packed.device)
        cut = [i for i, r in enumerate(packed.rollouts) if r.stop is StopReason.LENGTH and r.actions]
        if not self.options.bootstrap or not cut:
            return boot_R
        # The packed rows end before the last action token, so the state after it takes a forward of its own.
        tokens = [torch.from_numpy(packed.rollouts[i].segments[-1].tokens).to(packed.device, torch.int64) for i in cut]
        lengths = [len(t) for t in tokens]
        positions = torch.cat([torch.arange(n, device=packed.device) for n in lengths])
        hidden_P = self._hidden(torch.cat(tokens), positions, BlockLayout(lengths, packed.device))
        ends = torch.tensor(lengths, device=packed.device).cumsum(0) - 1
        boot_R[torch.tensor(cut, device=packed.device)] = self._head(hidden_P.index_select(0, ends)).double()
        return boot_R

    # ------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> dict[str, object]:
        trunk = {name: p.detach().clone() for module in self._own for name, p in module.state_dict().items()}
        head = {name: p.detach().clone() for name, p in self.head.state_dict().items()}
        return {"trunk": trunk, "head": head, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        trunk, head, optimizer = state["trunk"], state["head"], state["optimizer"]
        assert isinstance(trunk, dict)
        assert isinstance(head, dict)
        assert isinstance(optimizer, dict)
        if bool(trunk) != bool(self._own):
            raise ValueError(f"critic kind {self.options.kind}: the checkpoint holds a critic of the other kind")
        for module in self._own:
            module.load_state_dict(trunk)
        self.head.load_state_dict(head)
        self.optimizer.load_state_dict(optimizer)


def _sums(loss: Tensor, value_N: Tensor, return_N: Tensor) -> Tensor:
    """[loss, sum R, sum R^2, sum (R - V), sum (R - V)^2], float64: what adds up over micro-batches and ranks."""
    r, e = return_N.double(), return_N.double() - value_N.detach().double()
    return torch.stack([loss.detach().double(), r.sum(), r.square().sum(), e.sum(), e.square().sum()])
