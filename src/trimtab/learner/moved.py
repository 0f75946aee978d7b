"""The share of a model's weights that an update changes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import torch
from torch import Tensor

SAMPLED = 2**18  # weights looked at: the standard error of a share of 1 in 10,000 is a fifth of it
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


class Sample:
    """Of all weights laid end to end every s-th, bit for bit; all of them where there are at most ``SAMPLED``.

    s is the next prime of numel / SAMPLED: with a common divisor it would never see some columns of a matrix.
    """

    def __init__(self, tensors: Sequence[Tensor], size: int = SAMPLED) -> None:
        self._tensors = tensors
        self._stride = _prime(-(-sum(t.numel() for t in tensors) // size))
        self._first, before = [], 0
        for t in tensors:
            self._first.append(-before % self._stride)
            before += t.numel()

    def take(self) -> Tensor:
        """The bits of the sampled weights as they stand, a copy."""
        parts = [
            t.detach().reshape(-1).view(_BITS[t.element_size()])[first :: self._stride]
            for t, first in zip(self._tensors, self._first, strict=True)
            if first < t.numel()
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int32)

    def changed(self, before: Tensor) -> float:
        """The share of the sampled weights whose bits differ from ``before``, what :meth:`take` gave; 0 of none."""
        now = self.take()
        return int(torch.count_nonzero(now != before)) / now.numel() if now.numel() else 0.0


def _prime(least: int) -> int:
    """1, or the smallest prime that is not less."""
    return next(n for n in count(max(1, least)) if all(n % d for d in range(2, int(n**0.5) + 1)))
