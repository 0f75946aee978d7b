"""Ranks of a learner as threads of one process."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from threading import Barrier
from typing import TypeVar, cast

import torch
from torch import Tensor

T = TypeVar("T")


class Meeting:
    """Where the ranks of one process leave what they have for each other."""

    def __init__(self, size: int) -> None:
        self.barrier = Barrier(size, timeout=60)
        self.table: list[object] = [None] * size


class Threads:
    """A rank that is a thread."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank, self.size, self._meeting = rank, len(meeting.table), meeting

    def gather(self, x: T) -> list[T]:
        self._meeting.table[self.rank] = copy.deepcopy(x)
        self._meeting.barrier.wait()
        out = list(self._meeting.table)
        self._meeting.barrier.wait()  # nobody leaves the next thing before all have read this one
        return cast("list[T]", out)

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        for own, parts in zip(tensors, zip(*self.gather(list(tensors)), strict=True), strict=True):
            own.copy_(torch.stack(parts).sum(0))
