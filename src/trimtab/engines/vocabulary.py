"""Which token ids exist: models have more rows in their head than their tokenizer has tokens, for the sake of round numbers.

A row without a token can be sampled, says nothing, and is trained on all the same. So the distribution is over the tokenizer's ids
only, wherever one is formed: the engine that samples and the learner that scores both leave the other logits out.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids of a head of ``rows`` rows that can be sampled: those below ``size`` but for the ``holes``, in ascending order."""

    rows: int
    size: int
    holes: tuple[int, ...] = ()

    @classmethod
    def of(cls, ids: Collection[int], rows: int) -> Vocabulary:
        """``ids``: those of the tokenizer, added and special ones included; at least one of them below ``rows``."""
        known = {i for i in ids if 0 <= i < rows}
        size = max(known) + 1
        return cls(rows, size, tuple(sorted(set(range(size)) - known)))

    @property
    def unreachable(self) -> int:
        """How many rows have no token."""
        return self.rows - self.size + len(self.holes)

    def cut(self, logits_nC: Tensor, low: int = 0) -> Tensor:
        """-inf at the holes among the ids from ``low`` on, in place; what is not below ``size`` must not be there."""
        holes = [h - low for h in self.holes if low <= h < low + logits_nC.shape[-1]]
        if holes:
            logits_nC[..., holes] = -math.inf
        return logits_nC
