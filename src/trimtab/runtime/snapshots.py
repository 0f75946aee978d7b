"""The weights of past batches, for lockstep schedules that generate a batch only when it is consumed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import cast

from torch import Tensor

from trimtab.config.run import LockstepOptions
from trimtab.records import Version
from trimtab.store.tree import StateTree

Snapshot = tuple[int, dict[str, Tensor]]  # version number, weights


class Snapshots:
    """Weights after the last ``lag + 1`` consumed batches, oldest first; empty, and so it stays, where batches are generated ahead."""

    def __init__(self, options: LockstepOptions) -> None:
        self.kept = bool(options.swap_every or options.surplus)
        self._climbs = bool(options.swap_every)
        self._known: deque[Snapshot] = deque(maxlen=options.lag + 1)

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, version: Version, weights: Mapping[str, Tensor]) -> None:
        if self.kept:
            self._known.append((version.number, {name: tensor.clone() for name, tensor in weights.items()}))

    def ladder(self, calibrating: bool) -> Sequence[Snapshot]:
        """The weights the next batch is sampled by: the oldest, and under ``swap_every`` those after it, too.

        While the pool calibrates at lag 0, the newest alone.
        """
        known = list(self._known)
        return known[-1:] if calibrating else known if self._climbs else known[:1]

    def parts(self) -> dict[str, StateTree]:
        """What belongs to a checkpoint."""
        return {"lockstep": [(number, cast(StateTree, weights)) for number, weights in self._known]}

    def restore(self, saved: Sequence[tuple[int, Mapping[str, Tensor]]]) -> None:
        self._known.extend((number, dict(weights)) for number, weights in saved)
