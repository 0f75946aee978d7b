"""Publishing is two-phase: stage everywhere, compare digests, commit; then attest by a log-prob probe.

States of one publication, and what moves it::

    staging ──the digest of every replica equals the source's──▶ committing ──every replica serves it──▶ done
       └── a digest differs, or the deadline passes ──▶ aborted: the old version serves on, whole

The publication never waits and sends nothing: its owner feeds it answers and sends the commits that are ``due``. A replica that is
lost leaves the quorum, one that comes up while others still stage may join it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from trimtab.records import StoppedByRule, Version


class PublicationPhase(StrEnum):
    STAGING = "staging"
    COMMITTING = "committing"
    DONE = "done"
    ABORTED = "aborted"


class PublishError(StoppedByRule):
    """A version could not be published, or is not what a replica serves."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one publication, of the slowest replica: copying beside the served weights, generation standing still, and from the
    first stage to the last commit."""

    stage: float
    pause: float
    commit: float


class Publication:
    """One version on its way to ``replicas``; ``now`` and ``deadline`` are moments on one clock."""

    def __init__(self, version: Version, digest: str, replicas: Iterable[str], now: float, deadline: float) -> None:
        self.version, self.digest = version, digest
        self.phase: PublicationPhase = PublicationPhase.STAGING
        self._quorum = set(replicas)
        self._due: frozenset[str] = frozenset()
        self._started, self._deadline, self._finished = now, deadline, now
        self._staged: dict[str, float] = {}
        self._committed: dict[str, float] = {}
        self._settle(now)

    @property
    def replicas(self) -> frozenset[str]:
        """Those that have to answer, and have not been lost."""
        return frozenset(self._quorum)

    @property
    def under_way(self) -> bool:
        return self.phase in (PublicationPhase.STAGING, PublicationPhase.COMMITTING)

    @property
    def times(self) -> Times:
        return Times(max(self._staged.values(), default=0.0), max(self._committed.values(), default=0.0), self._finished - self._started)

    def staged(self, replica: str, digest: str, seconds: float, now: float) -> None:
        """A replica has staged bytes with this digest. Raises :class:`PublishError` where they are not the source's."""
        if self.phase is not PublicationPhase.STAGING or replica not in self._quorum:
            return
        if digest != self.digest:
            self.phase = PublicationPhase.ABORTED
            raise PublishError(
                f"publication of version {self.version.number}: {replica} staged bytes with digest {digest[:12]}, the learner sent "
                f"{self.digest[:12]}; the old version serves on, check the transport"
            )
        self._staged[replica] = seconds
        self._settle(now)

    def committed(self, replica: str, pause: float, now: float) -> None:
        """A replica serves the version; ``pause`` is how long its generation stood still."""
        if self.phase is PublicationPhase.COMMITTING and replica in self._quorum:
            self._committed[replica] = pause
            self._settle(now)

    def due(self) -> frozenset[str]:
        """The replicas to be told to commit now: all of them, once, when the last digest has agreed; nobody before."""
        due, self._due = self._due & self._quorum, frozenset()
        return due

    def joined(self, replica: str) -> bool:
        """A replica that has come up stages with the others, as long as they do; False where it is too late for that."""
        if self.phase is PublicationPhase.STAGING:
            self._quorum.add(replica)
        return self.phase is PublicationPhase.STAGING

    def lost(self, replica: str, now: float) -> None:
        """A replica has died: it no longer counts."""
        self._quorum.discard(replica)
        for answered in (self._staged, self._committed):  # another may join under its name
            answered.pop(replica, None)
        self._settle(now)

    def expire(self, now: float) -> None:
        """Abort where the deadline has passed: :class:`PublishError` names who has not answered."""
        if not self.under_way or now <= self._deadline:
            return
        staging = self.phase is PublicationPhase.STAGING
        missing = ", ".join(sorted(self._quorum - (self._staged if staging else self._committed).keys()))
        self.phase = PublicationPhase.ABORTED
        raise PublishError(
            f"publication of version {self.version.number}: no answer to {'stage' if staging else 'commit'} from {missing} within "
            f"{self._deadline - self._started:g} s{'; the old version serves on' if staging else ''}"
        )

    def _settle(self, now: float) -> None:
        if self.phase is PublicationPhase.STAGING and self._quorum <= self._staged.keys():
            self.phase, self._due = PublicationPhase.COMMITTING, self.replicas
        if self.phase is PublicationPhase.COMMITTING and self._quorum <= self._committed.keys():
            self.phase, self._finished = PublicationPhase.DONE, now
