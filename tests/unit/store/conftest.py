"""Groups to store, and a comparison that sees every bit."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch

from trimtab.records import Group, Kept, Outcome, Rollout, Sampling, Segment, Slot, StopReason, Timing


def _same(a: object, b: object) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        return torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))
    if isinstance(a, np.ndarray | np.generic):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, float):
        return np.float64(a).tobytes() == np.float64(b).tobytes()
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if dataclasses.is_dataclass(a):
        return all(_same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return a == b


def _make_group(index: int, members: int = 2, length: int = 7, epoch: int = 0) -> Group:
    rng = np.random.default_rng(1000 * epoch + index)
    mask = np.arange(length) >= 3
    cut = index % 2 == 1
    kept = Kept(indptr=np.arange(length - 2, dtype=np.int64) * 2, ids=rng.integers(0, 50, 2 * (length - 3)).astype(np.int32))

    def rollout(member: int) -> Rollout:
        segment = Segment(
            tokens=rng.integers(0, 50, length).astype(np.int32),
            action_mask=mask,
            behavior_logp=np.where(mask, rng.normal(size=length), 0).astype(np.float32),
            versions=np.where(mask, index, -1).astype(np.int32),
            turn=np.zeros(length, np.int16),
            sampling=Sampling(top_p=0.9) if cut else Sampling(),
            kept=kept if cut else None,
        )
        return Rollout(
            member=member,
            segments=(segment,),
            score=float(rng.random()),
            outcome=Outcome.WRONG,
            stop=StopReason.EOS,
            timing=Timing(started=1.5, finished=2.5),
        )

    return Group(
        slot=Slot(epoch, index),
        prompt=index,
        attempt=0,
        seed=7,
        task="sums",
        source="chain_sum",
        rollouts=tuple(rollout(m) for m in range(members)),
    )


@pytest.fixture(scope="session")
def same() -> Callable[[object, object], bool]:
    """Equal in type, dtype, shape and every bit."""
    return _same


@pytest.fixture(scope="session")
def make_group() -> Callable[..., Group]:
    """``make_group(index, members=2, length=7, epoch=0)``; odd ones have kept sets."""
    return _make_group
