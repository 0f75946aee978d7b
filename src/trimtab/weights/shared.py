"""The transport of the local runtime: two blocks of anonymous shared memory, written in turn.

The learner writes version v+1 into the block that no replica is staging from, the workers map the same memory and copy. The memory
is an unlinked file descriptor handed to the children at spawn: it has no name, so nothing survives the processes that hold it.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGN = 64  # bytes; a cache line, and enough for every dtype


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where one tensor lies in a block."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """The tensors of a block, in order of name, and its size in bytes."""

    entries: tuple[TensorPlace, ...]
    size: int

    @staticmethod
    def of(weights: Mapping[str, Tensor]) -> WeightLayout:
        entries, offset = [], 0
        for name in sorted(weights):
            tensor = weights[name]
            entries.append(TensorPlace(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), offset))
            offset += -(-tensor.numel() * tensor.element_size() // ALIGN) * ALIGN
        return WeightLayout(tuple(entries), max(offset, ALIGN))


def _anonymous(size: int) -> int:
    """A file descriptor of ``size`` bytes without a name in any file system."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("trimtab-weights")
    else:
        fd, path = tempfile.mkstemp(prefix="trimtab-weights-")
        os.unlink(path)
    os.ftruncate(fd, size)
    return fd


class SharedBlocks:
    """Two blocks of the same layout. One writer (the learner); readers copy between ``stage`` and their answer."""

    BLOCKS = 2

    def __init__(self, fd: int, layout: WeightLayout) -> None:
        self._fd, self.layout = fd, layout
        self._map = mmap.mmap(fd, layout.size * self.BLOCKS)
        self._views = [self._map_block(i) for i in range(self.BLOCKS)]

    @staticmethod
    def create(weights: Mapping[str, Tensor]) -> SharedBlocks:
        layout = WeightLayout.of(weights)
        return SharedBlocks(_anonymous(layout.size * SharedBlocks.BLOCKS), layout)

    @property
    def fd(self) -> int:
        """To be passed to the children at spawn; they map it with the same layout."""
        return self._fd

    def _map_block(self, block: int) -> dict[str, Tensor]:
        views = {}
        for entry in self.layout.entries:
            dtype = getattr(torch, entry.dtype)
            count, offset = math.prod(entry.shape), block * self.layout.size + entry.offset
            views[entry.name] = torch.frombuffer(self._map, dtype=dtype, count=count, offset=offset).view(entry.shape)
        return views

    def write(self, block: int, weights: Mapping[str, Tensor]) -> None:
        """Copy all tensors into a block; names, shapes or dtypes other than the layout's are an error before anything is written."""
        layout = WeightLayout.of(weights)
        if layout != self.layout:
            names = sorted({e.name for e in set(layout.entries) ^ set(self.layout.entries)})
            raise ValueError(f"weights differ from the layout in {', '.join(names)}")
        for name, view in self._views[block].items():
            view.copy_(weights[name])

    def read(self, block: int) -> Mapping[str, Tensor]:
        """Views into a block; valid until the learner writes it again."""
        return self._views[block]

    def close(self) -> None:
        """Unmap, unless somebody still holds a tensor of ``read``: then the last one does."""
        self._views.clear()
        with suppress(BufferError):
            self._map.close()
        os.close(self._fd)
