"""One simulated rollout worker: continuous batching over slots, weights swapped between two decode steps.

[ stage or swap what has come ─▶ fill free slots ─▶ one decode step ─▶ hand in what is whole and verified ]*

What comes about while it decodes or swaps (a verdict, the end of a rollout that was held back) it sees when it is done with that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trimtab.pool.results import Ticket
from trimtab.records import Group, Outcome, Rollout, Sampling, Segment, StopReason
from trimtab.sim.model import Model, Rng, SimRollout

if TYPE_CHECKING:
    import simpy

Process = Generator["simpy.Event", object, None]
FORGETTING = 0.5  # sigma of the log-normal noise on the drift of an interrupted rollout


@dataclass(slots=True)
class _Group:
    ticket: Ticket
    size: int
    rollouts: list[Rollout] = field(default_factory=list)
    verified: float = 0.0  # when the last verdict so far is there


@dataclass(slots=True, eq=False)
class _SimRow:
    group: _Group
    member: int
    what: SimRollout
    first: int  # the step that samples its first token
    begun: float


@dataclass(slots=True)
class _Message:
    """Takes ``seconds`` at a step boundary; then ``done`` is called."""

    seconds: float
    done: Callable[[], None]


class SimSampler:
    """``deliver(name, group)`` is called when a group is whole and verified. ``most``: groups it may hold."""

    def __init__(
        self, env: simpy.Environment, name: str, slots: int, most: int, model: Model, deliver: Callable[[str, Group], None], rng: Rng
    ) -> None:
        self.env, self.name, self._slots, self._most, self._model, self._deliver, self._rng = env, name, slots, most, model, deliver, rng
        self.held = 0  # the version it serves
        self._outstanding = 0
        self._queue: deque[tuple[_Group, int, SimRollout]] = deque()
        self._rows: dict[int, list[_SimRow]] = {}  # by the step that samples their last token
        self._taken = 0  # slots
        self._messages: deque[_Message] = deque()
        self._steps = 0
        self._commits: list[tuple[int, int]] = [(-1, 0)]  # from that step on, version
        self._idle, self._busy, self._since = 0.0, 0.0, 0.0
        self._decoding = self._swapping = False
        self._unseen: deque[Callable[[], None]] = deque()  # what has come about meanwhile
        self.spoke = 0.0  # when it last told the controller anything
        self._wake = env.event()
        env.process(self._run())

    @property
    def room(self) -> int:
        return self._most - self._outstanding

    def assign(self, ticket: Ticket, members: Sequence[SimRollout]) -> None:
        self._charge()
        self._outstanding += 1
        group = _Group(ticket, len(members))
        self._queue.extend((group, i, m) for i, m in enumerate(members))
        self._notify()

    def stage(self, seconds: float, done: Callable[[], None]) -> None:
        self._tell(_Message(seconds, done))

    def commit(self, version: int, seconds: float, done: Callable[[], None]) -> None:
        def swapped() -> None:
            self.held = version
            self._commits.append((self._steps, version))
            done()

        self._tell(_Message(seconds, swapped))

    def spent(self) -> tuple[float, float]:
        """Busy and idle seconds since the last call."""
        self._charge()
        spent = self._busy, self._idle
        self._busy = self._idle = 0.0
        return spent

    def _charge(self) -> None:
        passed = self.env.now - self._since
        self._since = self.env.now
        if self._outstanding or self._swapping:
            self._busy += passed
        else:
            self._idle += passed

    def _tell(self, message: _Message) -> None:
        self._messages.append(message)
        self._notify()

    def _notify(self) -> None:
        if not self._wake.triggered:
            self._wake.succeed()

    # ------------------------------------------------------------------------------------------------ the worker's loop
    def _run(self) -> Process:
        while True:
            while self._messages:
                message = self._messages.popleft()
                self._charge()
                self._swapping = True
                yield self.env.timeout(message.seconds)
                self._charge()
                self._swapping = False
                self.spoke = self.env.now
                message.done()
            self._look()
            self._fill()
            if not self._rows:
                self._wake = self.env.event()
                yield self._wake
                continue
            self._decoding = True
            yield self.env.timeout(self._model.decode_s(self._rng))
            self._decoding = False
            for row in self._rows.pop(self._steps, ()):
                self._decoded(row)
            self._steps += 1
            self._look()

    def _look(self) -> None:
        while self._unseen:
            self._unseen.popleft()()

    def _see(self, what: Callable[[], None]) -> None:
        if self._decoding or self._swapping:
            self._unseen.append(what)
        else:
            what()

    def _fill(self) -> None:
        while self._queue and self._taken < self._slots:
            group, i, what = self._queue.popleft()
            self._taken += 1
            self._rows.setdefault(self._steps + what.steps - 1, []).append(_SimRow(group, i, what, self._steps, self.env.now))

    def _decoded(self, row: _SimRow) -> None:
        rollout = self._rollout(row)
        held = row.begun + row.what.hold_s - self.env.now
        if held <= 0:
            self._finished(row, rollout)
        else:
            self.env.process(self._hold(row, rollout, held))

    def _hold(self, row: _SimRow, rollout: Rollout, seconds: float) -> Process:
        yield self.env.timeout(seconds)
        self._see(partial(self._finished, row, rollout))
        self._notify()

    def _finished(self, row: _SimRow, rollout: Rollout) -> None:
        self._taken -= 1
        group = row.group
        group.rollouts.append(rollout)
        group.verified = max(group.verified, self.env.now + row.what.verify_s)
        if len(group.rollouts) < group.size:
            return
        if group.verified > self.env.now:
            self.env.process(self._verify(group))
        else:
            self._hand_in(group)

    def _verify(self, group: _Group) -> Process:
        yield self.env.timeout(group.verified - self.env.now)
        self._see(partial(self._hand_in, group))

    def _hand_in(self, group: _Group) -> None:
        self._charge()
        self._outstanding -= 1
        self.spoke = self.env.now
        t = group.ticket
        rollouts = tuple(sorted(group.rollouts, key=lambda r: r.member))
        self._deliver(self.name, Group(slot=t.slot, prompt=t.prompt, attempt=t.attempt, seed=0, task="sim", source="", rollouts=rollouts))

    # ------------------------------------------------------------------------------------------------ what it said
    def _rollout(self, row: _SimRow) -> Rollout:
        n, steps = row.what.tokens, row.what.steps
        at = row.first + np.arange(n) * steps // n
        begin = bisect_right(self._commits, (row.first, self.held)) - 1
        moments, numbers = zip(*self._commits[begin:], strict=True)
        versions = np.array(numbers, np.int32)[np.searchsorted(moments, at, side="right") - 1]
        whole = np.concatenate([[-1], versions]).astype(np.int32)
        segment = Segment(
            tokens=np.zeros(n + 1, np.int32),
            action_mask=whole >= 0,
            behavior_logp=np.zeros(n + 1, np.float32),
            versions=whole,
            turn=np.zeros(n + 1, np.int16),
            sampling=Sampling(),
        )
        return Rollout(
            member=row.member,
            segments=(segment,),
            score=row.what.score,
            outcome=Outcome.CORRECT if row.what.score >= 1 else Outcome.WRONG,
            stop=StopReason.EOS,
            forgetting=self._forgetting(versions),
            forgetting_source="sim" if versions[0] != versions[-1] else "",
        )

    def _forgetting(self, versions: np.ndarray) -> float | None:
        """An assumption: the policy drifts from a prefix in proportion to the versions that have passed, with log-normal noise."""
        prefix = versions[versions < versions[-1]]
        return float((versions[-1] - prefix).mean() * np.exp(FORGETTING * self._rng.standard_normal())) if len(prefix) else None
