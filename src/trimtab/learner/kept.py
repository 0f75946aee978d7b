"""Columns of a batch that outlive one pass: kept by rollout, so that any mini-batch, micro-batch or rank can take its part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class KeptColumns:
    """Token columns (and rollout columns, as one entry a rollout) by name and by the rollout's place in the batch."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[int, Tensor]] = {}

    def put(self, name: str, x: Tensor, lengths: Sequence[int], places: Sequence[int]) -> None:
        """Keep ``x``, laid end to end over the rollouts at ``places``, of which each has so many entries."""
        column = self._parts.setdefault(name, {})
        for place, part in zip(places, x.split(list(lengths)), strict=True):
            column[place] = part

    def take(self, name: str, places: Sequence[int]) -> Tensor | None:
        """The entries of the rollouts at ``places``, end to end; None where the column was never put for all of them."""
        column = self._parts.get(name, {})
        if not places or any(place not in column for place in places):
            return None
        return torch.cat([column[place] for place in places])
