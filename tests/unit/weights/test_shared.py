"""Shared blocks: two processes see the same bytes, nothing else fits in, nothing stays behind."""

import os
import pickle
import subprocess
import sys

import psutil
import pytest
import torch

from trimtab.engines.digest import weights_digest
from trimtab.weights.shared import ALIGN, SharedBlocks, WeightLayout


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "b.weight": torch.randn(3, 5, generator=g),
        "a.gain": torch.randn(7, generator=g, dtype=torch.float64),
        "c.scale": torch.randn((), generator=g).to(torch.bfloat16),
    }


READER = """
import os, pickle, sys
from trimtab.engines.digest import weights_digest
from trimtab.weights.shared import SharedBlocks
blocks = SharedBlocks(int(sys.argv[1]), pickle.loads(bytes.fromhex(sys.argv[2])))
for line in sys.stdin:
    print(weights_digest(blocks.read(int(line))), flush=True)
"""


def test_another_process_reads_what_was_written_block_by_block() -> None:
    blocks = SharedBlocks.create(tensors())
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(blocks.fd), pickle.dumps(blocks.layout).hex()],
        pass_fds=[blocks.fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdin is not None
    assert reader.stdout is not None
    with reader:
        for version in range(4):
            blocks.write(version % 2, tensors(version))
            reader.stdin.write(f"{version % 2}\n")
            reader.stdin.flush()
            assert reader.stdout.readline().strip() == weights_digest(tensors(version))
        reader.stdin.write("0\n")  # writing one block left the other alone
        reader.stdin.flush()
        assert reader.stdout.readline().strip() == weights_digest(tensors(2))
        reader.stdin.close()
    blocks.close()


def test_every_tensor_starts_on_its_own_cache_line() -> None:
    layout = WeightLayout.of(tensors())
    assert [e.name for e in layout.entries] == ["a.gain", "b.weight", "c.scale"]
    assert [e.offset for e in layout.entries] == [0, ALIGN, 2 * ALIGN]
    assert layout.size == 3 * ALIGN


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"a.gain": None}, "a.gain"),
        ({"extra": torch.zeros(2)}, "extra"),
        ({"b.weight": torch.zeros(5)}, "b.weight"),  # would broadcast
        ({"b.weight": torch.zeros(3, 5, dtype=torch.float64)}, "b.weight"),  # would be rounded
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_written(change: dict[str, torch.Tensor | None], named: str) -> None:
    blocks = SharedBlocks.create(tensors())
    blocks.write(0, tensors())
    other = {name: t for name, t in {**tensors(1), **change}.items() if t is not None}
    with pytest.raises(ValueError, match=f"differ from the layout in .*{named}"):
        blocks.write(0, other)
    assert weights_digest(blocks.read(0)) == weights_digest(tensors())
    blocks.close()


def test_closing_gives_back_the_memory_and_the_descriptor() -> None:
    me = psutil.Process()
    big = {"w": torch.zeros(1 << 22)}
    names = set(os.listdir("/dev/shm"))
    SharedBlocks.create(big).close()
    before, descriptors = me.memory_maps(grouped=False), me.num_fds()
    for _ in range(5):
        blocks = SharedBlocks.create(big)
        blocks.write(1, big)
        assert set(os.listdir("/dev/shm")) == names  # it has no name anywhere
        blocks.close()
    assert me.num_fds() == descriptors
    assert len([m for m in me.memory_maps(grouped=False) if "trimtab" in m.path]) == len([m for m in before if "trimtab" in m.path]) == 0
