"""What a method sees and answers on the pool's side: finished groups, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """One finished group on arrival: verifiable scores, lengths and ages of its members."""

    scores_R: npt.NDArray[np.float64]
    lengths_R: npt.NDArray[np.int64]
    oldest: int
    mean_version: float
    now: int  # version of the learner
    truncated_R: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """Waiting groups, columnar, one row a group, in order of arrival."""

    ids: npt.NDArray[np.int64]
    entered: npt.NDArray[np.int64]  # learner version when the last member completed
    mean_version: npt.NDArray[np.float64]
    oldest: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]  # enqueue order
    forgetting: npt.NDArray[np.float64]  # NaN where unknown
    interrupted: npt.NDArray[np.bool_]  # spans more than one version
    score: npt.NDArray[np.float64]  # group mean
    length: npt.NDArray[np.float64]  # group mean, action tokens
    now: int
    batch_groups: int


@dataclass(frozen=True, slots=True)
class Reject:
    """A group that may not stay: its slot is freed and reported under ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """Ids of the groups that form the batch, and of those let go (``requeue``: let go, but their prompts come again)."""

    take: tuple[int, ...]
    reject: tuple[int, ...] = ()
    requeue: tuple[int, ...] = ()
    why: str = ""
