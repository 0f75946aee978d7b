"""The transport of the local runtime: two blocks of anonymous shared memory, written in turn.

The learner writes version v+1 into the block that no replica is staging from, the workers map the same memory and copy. The memory
is an unlinked file descriptor handed to the children at spawn: it has no name, so nothing survives the processes that hold it.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGN = 64  # bytes; a cache line, and enough for every dtype


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies in a block."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The tensors of a block, in order of name, and its size in bytes."""

    entries: tuple[Entry, ...]
    size: int

    @staticmethod
    def of(weights: Mapping[str, Tensor]) -> Layout:
        entries, offset = [], 0
        for name in sorted(weights):
            tensor = weights[name]
            entries.append(Entry(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), offset))
            offset += -(-tensor.numel() * tensor.element_size() // ALIGN) * ALIGN
        return Layout(tuple(entries), max(offset, ALIGN))


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

    def __init__(self, fd: int, layout: Layout) -> None:
        self._fd, self.layout = fd, layout
        self._map = mmap.mmap(fd, layout.size * self.BLOCKS)
        self._views = [self._map_block(i) for i in range(self.BLOCKS)]

    @staticmethod
    def create(weights: Mapping[str, Tensor]) -> SharedBlocks:
        layout = Layout.of(weights)
        return SharedBlocks(_anonymous(layout.size * SharedBlocks.BLOCKS), layout)

    @property
    def fd(self) -> int:
        """To be passed to the children at spawn; they map it with the same layout."""
        return self._fd

    def _map_block(self, block: int) -> dict[str, Tensor]:
        views = {}
        for entry in self.layout.entries:
            dtype = getattr(torch, entry.dtype)
            count = 1
            for n in entry.shape:
                count *= n
            flat = torch.frombuffer(self._map, dtype=dtype, count=count, offset=block * self.layout.size + entry.offset)
            views[entry.name] = flat.view(entry.shape)
        return views

    def write(self, block: int, weights: Mapping[str, Tensor]) -> None:
        """Copy all tensors into a block; missing or extra names are an error before anything is written."""
        views = self._views[block]
        if views.keys() != weights.keys():
            raise ValueError(f"weights differ from the layout in {sorted(views.keys() ^ weights.keys())}")
        for name, view in views.items():
            view.copy_(weights[name])

    def read(self, block: int) -> Mapping[str, Tensor]:
        """Views into a block; valid until the learner writes it again."""
        return self._views[block]

    def close(self) -> None:
        self._views.clear()
        os.close(self._fd)
