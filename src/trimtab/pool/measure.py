"""What selection looks at: scores, lengths and versions of finished groups, in NumPy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Protocol

import numpy as np

from trimtab.methods.protocol import GroupStats, PoolView, Reject
from trimtab.pool.ledger import Entry
from trimtab.records import Group, Outcome, StopReason


class Accepts(Protocol):
    """Acts at the accept point."""

    def accept(self, group: GroupStats) -> Reject | None: ...


@dataclass(frozen=True, slots=True)
class Measured:
    """A waiting group and its columns of the :class:`PoolView`."""

    group: Group
    oldest: int
    newest: int
    mean_version: float  # mean over members of the mean over their action tokens
    score: float
    length: float


def valid(group: Group) -> Group:
    """The group without members that are no evidence: verifier errors, aborted or empty rollouts, scores that are no number."""
    kept = tuple(
        r for r in group.rollouts if r.outcome is not Outcome.ERROR and r.stop is not StopReason.ABORTED and r.actions and isfinite(r.score)
    )
    return group if len(kept) == len(group.rollouts) else replace(group, rollouts=kept)


def measure(group: Group) -> Measured:
    """Columns of a group whose members are all valid."""
    versions = [r.versions() for r in group.rollouts]
    return Measured(
        group,
        oldest=min(int(v.min()) for v in versions),
        newest=max(int(v.max()) for v in versions),
        mean_version=float(np.mean([v.mean() for v in versions])),
        score=float(group.scores.mean()),
        length=float(np.mean([len(v) for v in versions])),
    )


def stats(m: Measured, now: int) -> GroupStats:
    """What a method sees at ``accept``."""
    rollouts = m.group.rollouts
    return GroupStats(
        scores_R=m.group.scores,
        lengths_R=np.array([r.actions for r in rollouts], dtype=np.int64),
        oldest=m.oldest,
        mean_version=m.mean_version,
        now=now,
        truncated_R=np.array([r.stop is StopReason.LENGTH for r in rollouts]),
    )


def view(waiting: Sequence[tuple[Entry, Measured]], now: int, batch_groups: int) -> PoolView:
    """What a method sees at ``select``: one row a waiting group, in the order given. ``ids`` are admission serials."""
    entries, measured = [e for e, _ in waiting], [m for _, m in waiting]
    return PoolView(
        ids=np.array([e.serial for e in entries], dtype=np.int64),
        entered=np.array([e.entered for e in entries], dtype=np.int64),
        mean_version=np.array([m.mean_version for m in measured], dtype=np.float64),
        oldest=np.array([m.oldest for m in measured], dtype=np.int64),
        order=np.array([e.arrival for e in entries], dtype=np.int64),
        forgetting=np.full(len(entries), np.nan),
        interrupted=np.array([m.newest > m.oldest for m in measured], dtype=np.bool_),
        score=np.array([m.score for m in measured], dtype=np.float64),
        length=np.array([m.length for m in measured], dtype=np.float64),
        now=now,
        batch_groups=batch_groups,
    )
