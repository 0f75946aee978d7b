"""How a version reaches every worker: the protocol of :mod:`trimtab.weights.publish` over the crew's messages.

A worker that comes up while the others stage joins them; one that comes up later gets a publication of its own. A new version waits
until all of these are done, so a block is never written while somebody stages from it, and commits cannot overtake stages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from torch import Tensor

from trimtab.engines.digest import weights_digest
from trimtab.records import StoppedByRule, TrimtabError, Version
from trimtab.rollout.messages import Commit, Committed, Stage, Staged
from trimtab.runtime.crew import Crew, CrewMember
from trimtab.weights.publish import Publication, PublicationPhase, Times
from trimtab.weights.shared import SharedBlocks

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A version in its block: the digest of the bytes there, and what the learner says under it of the probe's first segments."""

    version: Version
    block: int
    digest: str
    probe: Sequence[Sequence[float]]


class Publisher:
    """``gap``: the largest difference of learner and worker in a log-prob of the probe that is accepted."""

    def __init__(self, crew: Crew, blocks: SharedBlocks, deadline_s: float, gap: float) -> None:
        self._crew, self._blocks, self._deadline_s, self._gap = crew, blocks, deadline_s, gap
        self._newest: Prepared | None = None
        self._under_way: list[Publication] = []
        self._attested = False
        self.done: list[Times] = []  # of publications since the owner emptied it

    @property
    def idle(self) -> bool:
        """Every worker that is up serves the newest version."""
        return not self._under_way

    def prepare(self, version: Version, weights: Mapping[str, Tensor], probe: Sequence[Sequence[float]]) -> Prepared:
        """Write the block that nobody stages from; call when idle. Needs no lock."""
        block = 0 if self._newest is None else 1 - self._newest.block
        self._blocks.write(block, weights)
        return Prepared(version, block, weights_digest(self._blocks.read(block)), probe)

    def publish(self, prepared: Prepared) -> None:
        """Start; call when idle."""
        if self._under_way:
            raise RuntimeError(f"version {self._under_way[0].version.number} is under way; the next one waits for it")
        self._newest = prepared
        self._start(prepared, [member for member in self._crew if member.ready])

    def welcome(self, member: CrewMember) -> None:
        """A worker has come up: it gets the newest version, if there is one already."""
        if self._newest is None:
            return
        for publication in self._under_way:
            if publication.joined(member.name):
                self._stage(self._newest, member)
                return
        self._start(self._newest, [member])

    def _start(self, what: Prepared, members: Sequence[CrewMember]) -> None:
        now = time.perf_counter()
        publication = Publication(what.version, what.digest, [m.name for m in members], now, now + self._deadline_s)
        if publication.under_way:
            self._under_way.append(publication)
        for member in members:
            self._stage(what, member)

    def _stage(self, what: Prepared, member: CrewMember) -> None:
        self._crew.send(member, Stage(what.version.number, what.version.incarnation, what.block))

    def staged(self, member: CrewMember, message: Staged) -> None:
        now = time.perf_counter()
        for publication in self._under_way:
            publication.staged(member.name, message.digest, message.seconds, now)
        self._move()

    def committed(self, member: CrewMember, message: Committed) -> None:
        member.held = message.version
        self._attest(member, message)
        now = time.perf_counter()
        for publication in self._under_way:
            publication.committed(member.name, message.pause, now)
        self._move()

    def lost(self, member: CrewMember) -> None:
        """A worker is gone: nobody waits for it any more."""
        now = time.perf_counter()
        for publication in self._under_way:
            publication.lost(member.name, now)
        self._move()

    def check_deadlines(self) -> None:
        """Raises :class:`~trimtab.weights.publish.PublishError`, naming who is missing, where a publication takes too long."""
        now = time.perf_counter()
        for publication in self._under_way:
            publication.expire(now)

    def _move(self) -> None:
        """Send the commits that are due; forget what is done."""
        for publication in self._under_way:
            for name in publication.due():
                member = self._crew.get(name)
                assert member is not None  # a lost one has left the quorum
                assert self._newest is not None
                self._crew.send(member, Commit(publication.version.number, len(self._newest.probe)))
        self.done += [p.times for p in self._under_way if p.phase is PublicationPhase.DONE and p.replicas]
        self._under_way = [p for p in self._under_way if p.under_way]

    def _attest(self, member: CrewMember, message: Committed) -> None:
        """Compare what the worker says of the probe with what the learner says, under the same weights."""
        newest = self._newest
        if newest is None or newest.version.number != message.version:
            raise RuntimeError(f"{member.name} committed version {message.version}, which is not the last one published")
        expected = list(chain.from_iterable(newest.probe))
        gap = float(np.max(np.abs(np.subtract(message.probe, expected)), initial=0.0))
        first, self._attested = not self._attested, True
        if first:
            log.info("probe: %s and learner differ by at most %.2e in %d log-probs", member.name, gap, len(expected))
        if not gap <= self._gap:  # NaN differs, too
            error = TrimtabError if first else StoppedByRule
            raise error(
                f"learner.probe_gap = {self._gap:g}: {member.name} and learner differ by {gap:.2e} in a log-prob under version "
                f"{message.version}; use the same dtype in engine and learner, or allow a larger gap"
            )
