"""The published procedure (VCPO, Algorithm 1; our reading): one rollout at a time, two gradient-sized buffers a group.

Rollout i's own backward with the unit coefficient gives g_i, hence its norm. With p_i = pre_i the part of its final coefficient
that is known before credit, a group accumulates G0 = sum p_i g_i and G1 = sum p_i R_i g_i. A credit that is affine in the reward
within each group, c_i = p_i (alpha + beta R_i), then needs no second backward: the gradient is sum_groups alpha G0 + beta G1.
Since credit is assigned here for all groups at once, every group keeps its two buffers until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from trimtab.learner.packing import Packed, pack
from trimtab.records import TrimtabError

_AFFINE = 1e-6  # largest departure from affine, relative to the largest coefficient of the group
_NOTHING = 1e-9  # relative to the largest pre_i: rounding of an advantage that is 0 in exact arithmetic is not checked
_UNDERFLOW = 1e-30  # coefficients this small have left float32's normal range on their way here: no digits to check


class Backward(Protocol):
    """One rollout's forward, then one backward with per-token coefficients."""

    def backward(self, d_N: Tensor, h_N: Tensor | None = None) -> None: ...


class TwoBuffer:
    """Norms and re-weighted gradient of ``packed``, a rollout at a time; ``forward`` runs one of them."""

    def __init__(self, packed: Packed, forward: Callable[[Packed, bool], Backward], parameters: list[nn.Parameter]) -> None:
        self._packed, self._forward, self._parameters = packed, forward, parameters
        self._sums: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        self._pre: Tensor
        self._reward: Tensor
        self._group: Tensor

    def _each(self) -> Iterator[tuple[int, Packed, slice]]:
        """(rollout, its own packing, its tokens in _N) for rollouts that have an action token."""
        first = 0
        for i, (rollout, n) in enumerate(zip(self._packed.rollouts, self._packed.length_R.tolist(), strict=True)):
            if n:
                yield i, pack([rollout], device=self._packed.device, dtype=self._packed.behavior_N.dtype), slice(first, first + n)
            first += n

    def backward(self, d_N: Tensor, h_N: Tensor | None) -> None:
        for _, alone, tokens in self._each():
            self._forward(alone, h_N is not None).backward(d_N[tokens], None if h_N is None else h_N[tokens])

    def norms(self, q_N: Tensor, pre_R: Tensor, reward_R: Tensor, group_R: Tensor) -> Tensor:
        self._pre, self._reward, self._group = pre_R.double(), reward_R.double(), group_R
        norm2_R = torch.zeros(len(self._packed.rollouts), dtype=torch.float64, device=self._packed.device)
        groups, pre, reward = group_R.tolist(), self._pre.tolist(), self._reward.tolist()
        before = [p.grad for p in self._parameters]
        for i, alone, tokens in self._each():
            for p in self._parameters:
                p.grad = None
            self._forward(alone, False).backward(q_N[tokens])
            gradient = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
            norm2_R[i] = sum(torch.linalg.vector_norm(g).double().square() for g in gradient)
            self._add(groups[i], gradient, pre[i], reward[i])
        for p, grad in zip(self._parameters, before, strict=True):
            p.grad = grad
        return norm2_R

    def _add(self, group: int, gradient: list[Tensor], pre: float, reward: float) -> None:
        if group not in self._sums:
            self._sums[group] = ([torch.zeros_like(p) for p in self._parameters], [torch.zeros_like(p) for p in self._parameters])
        plain, rewarded = self._sums[group]
        torch._foreach_add_(plain, gradient, alpha=pre)
        torch._foreach_add_(rewarded, gradient, alpha=pre * reward)

    def finish(self, c_R: Tensor) -> None:
        c_R = c_R.double()
        for group, sums in self._sums.items():
            members = (self._group == group).nonzero()[:, 0]
            alpha, beta = self._affine(c_R[members], members)
            for p, *g in zip(self._parameters, *sums, strict=True):
                gradient = g[0].mul_(alpha).add_(g[1], alpha=beta)
                p.grad = gradient if p.grad is None else p.grad.add_(gradient)
        self._sums.clear()

    def _affine(self, c: Tensor, members: Tensor) -> tuple[float, float]:
        """(alpha, beta) with c_i = pre_i (alpha + beta R_i) for the rollouts of a group, by least squares, checked.

        Raises:
            TrimtabError: no such pair exists.
        """
        pre, reward = self._pre[members], self._reward[members]
        basis = torch.stack([pre, pre * reward], 1)
        solution = torch.linalg.pinv(basis) @ c
        gap = float((basis @ solution - c).abs().max())
        if gap > _AFFINE * float(c.abs().max()) + _NOTHING * float(pre.abs().max()) + _UNDERFLOW:
            raise TrimtabError(
                f"norms = 'two_buffer': the coefficients of group {int(self._group[members[0]])} are not affine in the reward (off by "
                f"{gap:.1e}); use norms = 'bookkeeping' or 'two_pass'"
            )
        return float(solution[0]), float(solution[1])
