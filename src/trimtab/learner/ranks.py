"""The learner's ranks: each takes a share of every update's groups, and all take the same step.

Denominators are those of the whole update, so gradients add. Per-rollout and per-token columns are gathered and sorted by rollout
before any statistic is made of them, so that every rank reads the same numbers. A reason to refuse on one rank refuses on all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class Ranks(Protocol):
    """Who trains together."""

    rank: int
    size: int

    def gather(self, x: T) -> list[T]:
        """``x`` of every rank, in order of rank. Collective."""
        ...

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over ranks. Collective."""
        ...


class Alone:
    """One process."""

    rank, size = 0, 1

    def gather(self, x: T) -> list[T]:
        return [x]

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        return


class ProcessGroup:
    """The ranks of an initialized ``torch.distributed`` group (gloo on CPU)."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def gather(self, x: T) -> list[T]:
        out: list[object] = [None] * self.size
        dist.all_gather_object(out, x, group=self._group)
        return cast("list[T]", out)

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        works = [dist.all_reduce(x, group=self._group, async_op=True) for x in tensors]
        for work in works:
            if work is not None:
                work.wait()


def complete(parameters: Sequence[torch.nn.Parameter], ranks: Ranks) -> list[Tensor]:
    """The parameters' gradients, summed over ranks. A rank on which a parameter took no part adds 0."""
    if ranks.size > 1:
        took_part = [any(flags) for flags in zip(*ranks.gather([p.grad is not None for p in parameters]), strict=True)]
        for p, any_rank in zip(parameters, took_part, strict=True):
            if p.grad is None and any_rank:
                p.grad = torch.zeros_like(p)
    gradients = [p.grad for p in parameters if p.grad is not None]
    ranks.sum_(gradients)
    return gradients
