"""What became of the responses that were to be judged, counted where it happens: before a member leaves, a group is retried or lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from trimtab.records import Outcome, Rollout

KINDS = 20  # reasons told apart; more are one
OTHER = "other reasons"


@dataclass(slots=True)
class VerdictCounts:
    """Responses by outcome; why those that failed did; and those whose group went on without them, or failed with them.

    ``lost`` left a group that goes on. ``retried`` are all members of groups with too few verdicts, those with a verdict included:
    they are generated again, or given up.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    retried: int = 0

    @property
    def asked(self) -> int:
        return self.outcomes.total()

    def count(self, outcome: Outcome, detail: str) -> None:
        """One response, judged or not."""
        self.outcomes[outcome.value] += 1
        if outcome in (Outcome.ERROR, Outcome.TIMEOUT):
            self._because(f"{outcome.value}: {detail}", 1)

    def group(self, members: Iterable[Rollout], whole: bool) -> None:
        """The members of a group that ended; ``whole``: it goes on, without those that have no verdict."""
        if whole:
            self.lost += sum(not r.judged for r in members)
        else:
            self.retried += len(list(members))

    def add(self, other: VerdictCounts) -> None:
        self.outcomes += other.outcomes
        for reason, n in other.reasons.items():
            self._because(reason, n)
        self.lost += other.lost
        self.retried += other.retried

    def _because(self, reason: str, n: int) -> None:
        self.reasons[reason if reason in self.reasons or len(self.reasons) < KINDS else OTHER] += n
