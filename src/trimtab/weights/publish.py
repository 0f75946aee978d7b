"""Publishing is two-phase: stage everywhere, compare digests, commit; then attest by a log-prob probe.

States of one publication, and who moves it::

    staged ──digest of every replica equals the source's──▶ committed ──every replica answered──▶ done
       └── a digest differs, a replica reports failure, or the deadline passes ──▶ aborted: the old version serves on, whole

The publisher never waits: its owner feeds it answers and asks what to send. A replica that is lost leaves the quorum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from trimtab.records import StoppedByRule, Version


class Phase(StrEnum):
    STAGED = "staged"
    COMMITTED = "committed"
    DONE = "done"
    ABORTED = "aborted"


class PublishError(StoppedByRule):
    """A version could not be published; every replica still serves the one before."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one publication: copying beside the served weights, generation paused, and stage to last commit."""

    stage: float
    pause: float
    commit: float


@dataclass(slots=True)
class Publication:
    """One version on its way to the replicas."""

    version: Version
    digest: str
    replicas: frozenset[str]
    started: float
    deadline: float
    phase: Phase = Phase.STAGED
    _staged: dict[str, float] = field(default_factory=dict)
    _committed: dict[str, float] = field(default_factory=dict)
    _finished: float = 0.0

    def __post_init__(self) -> None:
        self._settle(self.started)

    def staged(self, replica: str, digest: str, seconds: float, now: float) -> None:
        """A replica has staged; its digest decides whether the version may ever be served."""
        if self.phase is not Phase.STAGED or replica not in self.replicas:
            return
        if digest != self.digest:
            self.phase = Phase.ABORTED
            raise PublishError(
                f"weights = {self.version}: replica {replica} staged bytes with digest {digest[:12]}, the learner sent {self.digest[:12]}; "
                "the old version serves on, check the transport"
            )
        self._staged[replica] = seconds
        self._settle(now)

    def committed(self, replica: str, pause: float, now: float) -> None:
        """A replica serves the version; ``pause`` is how long its generation stood still."""
        if replica in self.replicas:
            self._committed[replica] = pause
            self._settle(now)

    def lost(self, replica: str, now: float) -> None:
        """A replica has died: it no longer counts."""
        self.replicas -= {replica}
        self._settle(now)

    def expire(self, now: float) -> None:
        """Raise where the deadline has passed, naming who is missing."""
        if self.phase in (Phase.STAGED, Phase.COMMITTED) and now > self.deadline:
            answered = self._staged if self.phase is Phase.STAGED else self._committed
            missing = ", ".join(sorted(self.replicas - answered.keys()))
            step = "stage" if self.phase is Phase.STAGED else "commit"
            self.phase = Phase.ABORTED
            raise PublishError(
                f"weights = {self.version}: no answer to {step} from {missing} within the deadline; the old version serves on"
            )

    def _settle(self, now: float) -> None:
        if self.phase is Phase.STAGED and self.replicas <= self._staged.keys():
            self.phase = Phase.COMMITTED
        if self.phase is Phase.COMMITTED and self.replicas <= self._committed.keys():
            self.phase, self._finished = Phase.DONE, now

    @property
    def times(self) -> Times:
        """Worst replica's seconds."""
        return Times(max(self._staged.values(), default=0.0), max(self._committed.values(), default=0.0), self._finished - self.started)
