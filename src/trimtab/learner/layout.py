"""Sequences of different lengths as a few rectangular blocks: what attention and the per-rollout products work on.

Rows of a packed tensor that belong to one sequence are consecutive. A **block** holds ``count`` sequences as one
``[count, length]`` rectangle. Sequences of exactly equal length that already lie side by side are a *view* of the packed
tensor; others are gathered, shorter ones padded at the end. Nothing of size rows x rows is ever made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# A further block costs about as much as this many padded rows; measured flat between 16 and 128.
_BLOCK_ROWS = 64


@dataclass(frozen=True, slots=True)
class Block:
    """``count`` sequences of at most ``length`` rows."""

    count: int
    length: int
    members: slice | Tensor  # the sequences' numbers in the block's order; a slice where they are consecutive
    first: int  # where the rectangle starts, if it is a view
    index: Tensor | None  # int64[count * length]: the row at each place, the sequence's first where padded; None: a view
    padded: Tensor | None  # int64: the places without a row; None: there is none

    def take(self, x: Tensor) -> Tensor:
        """[rows, ...] -> [count, length, ...]. Padded places repeat a row of the same sequence."""
        if self.index is None:
            x = x[self.first : self.first + self.count * self.length]
        else:
            x = x.index_select(0, self.index)
        return x.reshape(self.count, self.length, *x.shape[1:])

    def take_zero(self, x: Tensor) -> Tensor:
        """The same with zeros in padded places; not differentiable."""
        y = self.take(x)
        if self.padded is not None:
            y.flatten(0, 1).index_fill_(0, self.padded, 0)
        return y


class BlockLayout:
    """How ``len(lengths)`` sequences that lie back to back in a packed tensor are cut into blocks.

    Blocks are runs of the sequences sorted by length: equal lengths share a block, and neighboring lengths are merged where
    padding is cheaper than one more block. ``owner``: the sequence each row belongs to. ``squares``: how many numbers the
    blocks' length x length matrices have. Empty sequences are in no block.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.lengths = tuple(lengths)
        self.rows = sum(self.lengths)
        length = np.array(self.lengths, dtype=np.int64)
        start = np.cumsum(length) - length
        order = np.argsort(length, kind="stable")
        order = order[length[order] > 0]

        def put(x: npt.NDArray[np.int64]) -> Tensor:
            return torch.from_numpy(x).to(device)

        blocks = []
        back = np.empty(self.rows, dtype=np.int64)  # packed row -> its place in the blocks laid end to end
        places = 0
        for run in _runs(length[order]):
            members = order[run]
            count, longest = len(members), int(length[members[-1]])
            offset = np.arange(longest)
            real = (offset < length[members, None]).ravel()
            index = (start[members, None] + offset * (offset < length[members, None])).ravel()
            back[index[real]] = places + np.flatnonzero(real)
            places += count * longest
            consecutive = np.array_equal(members, np.arange(members[0], members[0] + count))
            view = np.array_equal(index, np.arange(index[0], index[0] + count * longest))
            blocks.append(
                Block(
                    count=count,
                    length=longest,
                    members=slice(int(members[0]), int(members[0]) + count) if consecutive else put(members),
                    first=int(index[0]),
                    index=None if view else put(index),
                    padded=None if real.all() else put(np.flatnonzero(~real)),
                )
            )
        self.blocks = tuple(blocks)
        self.squares = sum(b.count * b.length**2 for b in blocks)
        self.owner = put(np.repeat(np.arange(len(length)), length))
        self._back = None if places == self.rows and np.array_equal(back, np.arange(self.rows)) else put(back)

    def split(self, x: Tensor) -> list[Tensor]:
        """[rows, ...] -> one [count, length, ...] per block."""
        return [b.take(x) for b in self.blocks]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The inverse of :meth:`split`; what stands in padded places is dropped."""
        x = parts[0].flatten(0, 1) if len(parts) == 1 else torch.cat([p.flatten(0, 1) for p in parts])
        return x if self._back is None else x.index_select(0, self._back)

    def sums(self, x: Tensor) -> Tensor:
        """Sum of each sequence's rows, [sequences, ...]; 0 for an empty one. Not differentiable."""
        if len(self.blocks) == 1 and self.blocks[0].count == len(self.lengths):
            return self.blocks[0].take_zero(x).sum(1)
        sums = x.new_zeros(len(self.lengths), *x.shape[1:])
        for b in self.blocks:
            sums[b.members] = b.take_zero(x).sum(1)
        return sums


def _runs(length: npt.NDArray[np.int64]) -> list[slice]:
    """Cut ascending lengths into runs; a run grows while padding it costs fewer rows than a further block."""
    runs: list[slice] = []
    begin, padded = 0, 0
    for end in range(1, len(length) + 1):
        if end < len(length):
            padded += int(length[end] - length[end - 1]) * (end - begin)
        if end == len(length) or padded > _BLOCK_ROWS:
            runs.append(slice(begin, end))
            begin, padded = end, 0
    return runs
