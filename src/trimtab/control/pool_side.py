"""What a method sees and answers on the pool's side: finished groups, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from trimtab.control.learner_side import Notes, Recorder

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """One finished group on arrival: verifiable scores, lengths and ages of its members."""

    scores_R: npt.NDArray[np.float64]
    lengths_R: npt.NDArray[np.int64]
    oldest: int
    mean_version: float
    now: int  # version of the learner
    truncated_R: npt.NDArray[np.bool_]
    recorder: Recorder = field(default_factory=Notes)  # what is noted here is told with the next batch


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """Waiting groups, columnar: one row a group, in order of arrival; ``_M``: one row an interrupted member, in order of group.

    A member is *interrupted* if its tokens span versions. It is *finished* at the version that sampled its last token, so that
    the age of its tokens splits exactly: ``now - mean version = (finished - mean version) + (now - finished)``, generation and
    waiting. A member that waits for its siblings waits. Members that were not interrupted have no generation part.
    """

    ids: I64
    entered: I64  # learner version when the last member completed
    mean_version: F64  # mean over members of the mean over their action tokens
    finished: F64  # mean over members
    first: F64  # smallest ``finished`` of the members that were not interrupted; inf where all were
    members: I64
    oldest: I64
    order: I64  # enqueue order
    forgetting: F64  # mean over interrupted members; NaN where unknown
    interrupted: npt.NDArray[np.bool_]  # has an interrupted member
    score: F64  # group mean
    accuracy: F64  # share of members verified correct
    length: F64  # group mean, action tokens
    row_M: I64  # which group
    finished_M: I64
    generation_M: F64  # finished - mean version, > 0
    forgetting_M: F64  # NaN where unknown, inf where no token of the prefix could be re-scored
    now: int
    batch_groups: int
    recorder: Recorder = field(default_factory=Notes)  # what is noted here is told once the selection is carried out


@dataclass(frozen=True, slots=True)
class Reject:
    """A group that may not stay: its slot is freed and counted under ``reason``; ``why`` is a sentence, the same for all of a kind."""

    reason: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """Ids of the groups that form the batch, and of those let go (``requeue``: let go, but their prompts come again).

    ``take`` is a whole batch, or empty: then the groups are let go at once, and the batch waits for others. ``why`` they are let go.
    """

    take: tuple[int, ...]
    reject: tuple[int, ...] = ()
    requeue: tuple[int, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Rescoring:
    """Where forgetting scores come from: ``swap``, the engine scores a running rollout's tokens again when weights are swapped under
    it; ``learner``, the learner scores interrupted rollouts when they have arrived. ``phi`` is averaged over the prefix."""

    source: Literal["swap", "learner"]
    phi: Literal["relu", "abs", "k1", "k3"]
