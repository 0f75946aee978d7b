"""What selection looks at: scores, lengths and versions of finished groups, in NumPy."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trimtab.control.protocol import GroupStats, Recorder
from trimtab.records import Group, Outcome, StopReason


@dataclass(frozen=True, slots=True)
class MeasuredGroup:
    """A waiting group and its columns of the :class:`PoolView`."""

    group: Group
    oldest: int
    newest: int
    mean_version: float  # mean over members of the mean over their action tokens
    finished: float  # mean over members of the version that sampled their last token
    first: float  # the smallest of those that were not interrupted; inf where all were
    members: int
    score: float
    accuracy: float
    length: float
    forgetting: float  # mean over interrupted members; NaN where unknown
    finished_M: npt.NDArray[np.int64]
    generation_M: npt.NDArray[np.float64]
    forgetting_M: npt.NDArray[np.float64]


def valid(group: Group) -> Group:
    """The group without members that are no evidence: verifier errors, aborted or empty rollouts, scores that are no number."""
    kept = tuple(r for r in group.rollouts if r.judged and r.stop is not StopReason.ABORTED and r.actions)
    return group if len(kept) == len(group.rollouts) else replace(group, rollouts=kept)


def measure(group: Group) -> MeasuredGroup:
    """Columns of a group whose members are all valid."""
    versions = [r.versions() for r in group.rollouts]
    oldest_R, newest_R = (np.array([int(extreme(v)) for v in versions], dtype=np.int64) for extreme in (np.min, np.max))
    mean_R = np.array([v.mean() for v in versions])
    whole_R = oldest_R == newest_R
    forgetting_M = np.array([np.nan if r.forgetting is None else r.forgetting for r in group.rollouts])[~whole_R]
    return MeasuredGroup(
        group,
        oldest=int(oldest_R.min()),
        newest=int(newest_R.max()),
        mean_version=float(mean_R.mean()),
        finished=float(newest_R.mean()),
        first=float(newest_R[whole_R].min()) if whole_R.any() else np.inf,
        members=len(versions),
        score=float(group.scores.mean()),
        accuracy=float(np.mean([r.outcome is Outcome.CORRECT for r in group.rollouts])),
        length=float(np.mean([len(v) for v in versions])),
        forgetting=float(forgetting_M.mean()) if len(forgetting_M) else np.nan,
        finished_M=newest_R[~whole_R],
        generation_M=(newest_R - mean_R)[~whole_R],
        forgetting_M=forgetting_M,
    )


def stats(m: MeasuredGroup, now: int, recorder: Recorder) -> GroupStats:
    """What a method sees at ``accept``."""
    rollouts = m.group.rollouts
    return GroupStats(
        scores_R=m.group.scores,
        lengths_R=np.array([r.actions for r in rollouts], dtype=np.int64),
        oldest=m.oldest,
        mean_version=m.mean_version,
        now=now,
        truncated_R=np.array([r.stop is StopReason.LENGTH for r in rollouts]),
        recorder=recorder,
    )
