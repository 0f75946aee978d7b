"""Sequences of different lengths as a few rectangular blocks: what attention and the per-rollout products work on.

Rows of a packed tensor that belong to one sequence are consecutive. A **block** holds ``count`` sequences as one
``[count, length]`` rectangle. Sequences of exactly equal length that already lie side by side are a *view* of the packed
tensor; others are gathered, shorter ones padded at the end. Nothing of size rows x rows is ever made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# A block costs about as much as this many padded rows (kernel launches against the work in a padded row).
_BLOCK_ROWS = 48


@dataclass(frozen=True, slots=True)
class Block:
    """``count`` sequences of at most ``length`` rows."""

    count: int
    length: int
    members: slice | Tensor  # the sequences' numbers in the block's order; a slice where they are consecutive
    first: int  # where the rectangle starts, if it is a view
    index: Tensor | None  # int64[count * length]: the row at each place, row 0 of the sequence where padded; None: a view
    valid: Tensor | None  # bool[count * length]; None: no place is padded

    def row_numbers(self, rows: Tensor) -> Tensor:
        """The packed rows of the block's valid places, in the block's order."""
        if self.index is None:
            return rows[self.first : self.first + self.count * self.length]
        return self.index if self.valid is None else self.index[self.valid]

    def take(self, x: Tensor) -> Tensor:
        """[rows, ...] -> [count, length, ...]. Padded places repeat a row of the same sequence."""
        if self.index is None:
            x = x[self.first : self.first + self.count * self.length]
        else:
            x = x.index_select(0, self.index)
        return x.reshape(self.count, self.length, *x.shape[1:])

    def take_zero(self, x: Tensor) -> Tensor:
        """The same with zeros in padded places; never written to."""
        y = self.take(x)
        if self.valid is None:
            return y
        return y * self.valid.view(self.count, self.length, *(1,) * (x.ndim - 1)).to(x.dtype)


class Layout:
    """How ``len(lengths)`` sequences that lie back to back in a packed tensor are cut into blocks.

    Blocks are runs of the sequences sorted by length: equal lengths share a block, and neighboring lengths are merged where
    padding is cheaper than one more block.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.lengths = tuple(lengths)
        self.rows = sum(self.lengths)
        starts = [0]
        for n in self.lengths:
            starts.append(starts[-1] + n)
        order = sorted((i for i, n in enumerate(self.lengths) if n), key=lambda i: self.lengths[i])
        blocks: list[Block] = []
        for run in _runs([self.lengths[i] for i in order]):
            members = order[run]
            blocks.append(_block(members, [self.lengths[i] for i in members], [starts[i] for i in members], device))
        self.blocks = tuple(blocks)
        self.squares = sum(b.count * b.length**2 for b in blocks)  # numbers in the blocks' length x length matrices
        # Packed row -> place in the concatenated valid rows of the blocks; None where that is the identity.
        rows = torch.arange(self.rows, device=device)
        placed = torch.cat([rows[:0], *(b.row_numbers(rows) for b in blocks)])
        self.back = None if torch.equal(placed, rows) else torch.argsort(placed)
        self.owner = torch.repeat_interleave(torch.arange(len(self.lengths)), torch.tensor(self.lengths, dtype=torch.int64)).to(device)

    def split(self, x: Tensor) -> list[Tensor]:
        """[rows, ...] -> one [count, length, ...] per block."""
        return [b.take(x) for b in self.blocks]

    def sums(self, x: Tensor) -> Tensor:
        """Sum of each sequence's rows, [sequences, ...]; 0 for an empty one."""
        if len(self.blocks) == 1 and self.blocks[0].count == len(self.lengths):
            return self.blocks[0].take_zero(x).sum(1)
        sums = x.new_zeros(len(self.lengths), *x.shape[1:])
        for b in self.blocks:
            sums[b.members] = b.take_zero(x).sum(1)
        return sums

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The inverse of :meth:`split`; what stands in padded places is dropped."""
        flat = [p.flatten(0, 1) if b.valid is None else p.flatten(0, 1)[b.valid] for b, p in zip(self.blocks, parts, strict=True)]
        x = flat[0] if len(flat) == 1 else torch.cat(flat)
        return x if self.back is None else x.index_select(0, self.back)


def _runs(lengths: Sequence[int]) -> list[slice]:
    """Cut ascending lengths into runs; a run grows while padding it costs fewer rows than a further block."""
    runs: list[slice] = []
    begin, end, n = 0, 0, len(lengths)
    while begin < n:
        end, padded = begin, 0
        while end < n:
            step = lengths[end] - (lengths[end - 1] if end > begin else lengths[end])
            grown = padded + step * (end - begin)
            if grown > _BLOCK_ROWS:
                break
            padded, end = grown, end + 1
        runs.append(slice(begin, end))
        begin = end
    return runs


def _block(members: list[int], lengths: list[int], starts: list[int], device: torch.device | str) -> Block:
    count, length = len(members), max(lengths)
    consecutive = members == list(range(members[0], members[0] + count))
    numbers = slice(members[0], members[0] + count) if consecutive else torch.tensor(members, dtype=torch.int64, device=device)
    even = all(n == length for n in lengths)
    if even and starts == list(range(starts[0], starts[0] + count * length, length)):
        return Block(count, length, numbers, starts[0], None, None)
    offset = torch.arange(length)
    valid = offset < torch.tensor(lengths)[:, None]
    index = torch.tensor(starts)[:, None] + offset * valid
    return Block(count, length, numbers, 0, index.flatten().to(device), None if even else valid.flatten().to(device))
