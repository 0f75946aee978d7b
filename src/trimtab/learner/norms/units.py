"""Per-rollout gradients of one module from its input x and output gradient e, row by row of the packed tensor.

Rows of different rollouts do not interact, so rollout i's gradient of a Linear's weight is e_i^T x_i over its rows (segments
summed before squaring: the block is the rollout), of a bias sum e_i, of a gain sum xhat_i * e_i. Its squared norm comes from the
materialized product or from ||e^T x||^2 = sum_{s,t} <x_s, x_t> <e_s, e_t>; the gradient of sum_i c_i (..) is one product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trimtab.learner.layout import BlockLayout
from trimtab.learner.norms.estimate import Mode, Shape, choose_mode
from trimtab.learner.norms.registry import NORMALIZERS

_SCRATCH = 2**23  # bytes of per-rollout gradients formed at a time where they are not kept

ParameterGradient = tuple[Tensor, Tensor]  # a parameter and its gradient


class Buffers:
    """Large buffers kept from one batch to the next: touching fresh pages costs more than the product that fills them."""

    def __init__(self) -> None:
        self._free: dict[str, Tensor] = {}

    def take(self, name: str, size: int, like: Tensor) -> Tensor:
        """A flat buffer of ``size`` numbers, contents arbitrary; the caller's until :meth:`give`."""
        buffer = self._free.pop(name, None)
        if buffer is None or buffer.numel() < size or buffer.dtype != like.dtype or buffer.device != like.device:
            buffer = like.new_empty(size)
        return buffer

    def give(self, name: str, buffer: Tensor) -> None:
        self._free[name] = buffer


class NormBudget:
    """Of one pass: its rollout blocks, the sums of squares so far, and how many bytes of per-rollout gradients may still be kept.

    ``weighted``: the units will be asked for a re-weighted gradient.
    """

    def __init__(self, layout: BlockLayout, like: Tensor, *, left: int, buffers: Buffers, weighted: bool) -> None:
        self.layout, self.left, self.buffers, self.weighted = layout, left, buffers, weighted
        self.norm2_R = torch.zeros(len(layout.lengths), dtype=torch.float64, device=like.device)
        self._norms: list[Tensor] = []

    def add(self, gradient: Tensor) -> None:
        """Add ||gradient_i||^2 of every rollout; ``gradient`` [R, ...]."""
        self._norms.append(torch.linalg.vector_norm(gradient.flatten(1), dim=1))

    def total(self) -> Tensor:
        """Squared norms over all that was added, float64[R]."""
        return self.norm2_R + torch.stack(self._norms).double().square_().sum(0) if self._norms else self.norm2_R


@dataclass(slots=True)
class Input:
    """The input of one or several Linears, and what they share."""

    x: Tensor  # [rows, d_in]
    layout: BlockLayout
    sharing: int = 0
    blocks: list[Tensor] = field(default_factory=list)
    grams: list[Tensor] = field(default_factory=list)
    scaled: Tensor | None = None

    def taken(self) -> list[Tensor]:
        if not self.blocks:
            self.blocks = self.layout.split(self.x)
        return self.blocks

    def gram(self) -> list[Tensor]:
        if not self.grams:
            self.grams = [torch.bmm(x, x.mT) for x in self.taken()]
        return self.grams

    def times(self, c_P: Tensor) -> Tensor:
        """x with row t scaled by c_P[t], once for all that share it."""
        if self.scaled is None:
            self.scaled = self.x * c_P[:, None]
        return self.scaled


class LinearUnit:
    """A Linear with or without bias."""

    def __init__(self, name: str, module: nn.Linear, shared: Input, budget: NormBudget) -> None:
        self.name, self.module, self.input, self.budget = name, module, shared, budget
        self.e: Tensor | None = None
        self.kept: Tensor | None = None
        self.bias_RO: Tensor | None = None

    def receive(self, e: Tensor) -> None:
        layout, budget = self.budget.layout, self.budget
        e = e.reshape(layout.rows, -1)
        x = self.input.x
        if self.module.bias is not None and self.module.bias.requires_grad:
            self.bias_RO = layout.sums(e)
            budget.add(self.bias_RO)
        if not self.module.weight.requires_grad:
            return
        shape = Shape(x.shape[1], e.shape[1], self.input.sharing)
        mode = choose_mode(shape, layout, x.element_size(), keep=budget.left if budget.weighted else 0)
        if mode is Mode.KEEP:
            self._keep(e, x.shape[1] * e.shape[1])
        elif mode is Mode.FORGET:
            self._forget(e, x.shape[1] * e.shape[1])
        else:
            self._gram(e)
        if budget.weighted and mode is not Mode.KEEP:
            self.e = e

    def _keep(self, e: Tensor, size: int) -> None:
        """Materialize every rollout's gradient, [R, d_out, d_in]."""
        layout, budget = self.budget.layout, self.budget
        rollouts = len(layout.lengths)
        budget.left -= rollouts * size * e.element_size()
        self.kept = budget.buffers.take(self.name, rollouts * size, e)
        g = self.kept[: rollouts * size].view(rollouts, e.shape[1], -1)
        # Rollouts ascend in length, so those without rows come first and belong to no block.
        g[: rollouts - sum(b.count for b in layout.blocks)] = 0
        for b, x_b in zip(layout.blocks, self.input.taken(), strict=True):
            torch.bmm(b.take_zero(e).mT, x_b, out=g[b.members])
        budget.add(g)

    def _forget(self, e: Tensor, size: int) -> None:
        """The same a few rollouts at a time, for their norms only."""
        layout, budget = self.budget.layout, self.budget
        step = max(1, _SCRATCH // (size * e.element_size()))
        scratch = budget.buffers.take("scratch", step * size, e)
        for b, x_b in zip(layout.blocks, self.input.taken(), strict=True):
            e_b = b.take_zero(e)
            norms = e.new_empty(b.count)
            for a in range(0, b.count, step):
                n = min(step, b.count - a)
                g = torch.bmm(e_b[a : a + n].mT, x_b[a : a + n], out=scratch[: n * size].view(n, e.shape[1], -1))
                torch.linalg.vector_norm(g, dim=(1, 2), out=norms[a : a + n])
            budget.norm2_R[b.members] += norms.double().square_()
        budget.buffers.give("scratch", scratch)

    def _gram(self, e: Tensor) -> None:
        for b, gram in zip(self.budget.layout.blocks, self.input.gram(), strict=True):
            e_b = b.take_zero(e)
            self.budget.norm2_R[b.members] += torch.bmm(e_b, e_b.mT).mul_(gram).sum((1, 2), dtype=torch.float64)

    def finish(self, c_R: Tensor, c_P: Tensor) -> Iterator[ParameterGradient]:
        weight = self.module.weight
        if self.kept is not None:
            yield weight, (c_R @ self.kept[: c_R.shape[0] * weight.numel()].view(c_R.shape[0], -1)).view_as(weight)
            self.budget.buffers.give(self.name, self.kept)
        elif self.e is not None:
            yield weight, self.e.T @ self.input.times(c_P)
        if self.bias_RO is not None:
            yield self.module.bias, c_R @ self.bias_RO


class GainUnit:
    """RMSNorm or LayerNorm; a gain shared over heads sums over them."""

    def __init__(self, module: nn.Module, x: Tensor, budget: NormBudget) -> None:
        self.module, self.x, self.budget = module, x, budget
        self.parts: list[ParameterGradient] = []

    def receive(self, e: Tensor) -> None:
        rows = self.budget.layout.rows
        weight, bias = getattr(self.module, "weight", None), getattr(self.module, "bias", None)
        if weight is not None and weight.requires_grad:
            product = NORMALIZERS[type(self.module)](self.module, self.x).mul_(e)
            self._add(weight, product.view(rows, -1, weight.numel()))
        if bias is not None and bias.requires_grad:
            self._add(bias, e.reshape(rows, -1, bias.numel()))

    def _add(self, parameter: nn.Parameter, x: Tensor) -> None:
        sums = self.budget.layout.sums(x[:, 0] if x.shape[1] == 1 else x.sum(1))
        self.budget.add(sums)
        self.parts.append((parameter, sums))

    def finish(self, c_R: Tensor, c_P: Tensor) -> Iterator[ParameterGradient]:
        for parameter, sums in self.parts:
            yield parameter, (c_R @ sums).view_as(parameter)
