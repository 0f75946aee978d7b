"""How long things take: where the discrete-event model gets its times from.

A :class:`Model` is asked for the members of a group, for the seconds of a decode step and for the times of a batch at the learner, in the
order in which they are needed. Measured ones come from a run folder (:mod:`trimtab.sim.fit`); :class:`Given` has them by hand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from trimtab.records import Slot

Rng = np.random.Generator


class SimRollout(NamedTuple):
    """One rollout: ``tokens`` spread evenly over the decode ``steps`` in which it holds a slot.

    It keeps the slot until ``hold_s`` after its start, where that is later; its verdict is there ``verify_s`` after its end.
    """

    tokens: int
    steps: int
    hold_s: float = 0.0
    verify_s: float = 0.0
    score: float = 1.0


class LearnerStep(NamedTuple):
    """One batch at the learner: busy for ``train_s``, then, where a step was ``applied``, ``publish_s``, then ``after_s``.

    A sampler stands still for ``stage_s`` at its first step boundary after that, and for ``pause_s`` at its first one after all
    have staged.
    """

    train_s: float
    publish_s: float = 0.0
    after_s: float = 0.0
    stage_s: float = 0.0
    pause_s: float = 0.0
    applied: bool = True


class Model(Protocol):
    """Answers depend on the arguments alone, ``rng`` included."""

    def group(self, rng: Rng, slot: Slot, members: int) -> Sequence[SimRollout]: ...
    def decode_s(self, rng: Rng) -> float:
        """Seconds of one decode step."""
        ...

    def step(self, rng: Rng, batch: int) -> LearnerStep: ...


@dataclass(frozen=True, slots=True)
class LogNormal:
    """``median * exp(sigma z)``; ``sigma = 0`` is a constant."""

    median: float
    sigma: float = 0.0

    @classmethod
    def of(cls, median: float, p99: float) -> LogNormal:
        """The one with this median and 99th percentile."""
        return cls(median, math.log(p99 / median) / NormalDist().inv_cdf(0.99))

    @property
    def mean(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)

    def draw(self, rng: Rng) -> float:
        return self.median * math.exp(self.sigma * rng.standard_normal()) if self.sigma else self.median


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Times by hand. A rollout takes ``tokens`` decode steps, times ``stretch`` where that is above 1."""

    step_s: float
    train_s: LogNormal
    tokens: LogNormal = LogNormal(20)
    stretch: LogNormal = LogNormal(1.0)
    hold_s: LogNormal = LogNormal(0.0)
    verify_s: float = 0.0
    publish_s: float = 0.0
    after_s: float = 0.0
    stage_s: float = 0.0
    pause_s: float = 0.0
    correct: float = 0.5  # share of rollouts with score 1
    applied: float = 1.0  # share of batches that are a step

    def group(self, rng: Rng, slot: Slot, members: int) -> list[SimRollout]:
        return [self._member(rng) for _ in range(members)]

    def _member(self, rng: Rng) -> SimRollout:
        tokens = max(1, round(self.tokens.draw(rng)))
        steps = round(tokens * max(1.0, self.stretch.draw(rng)))
        return SimRollout(tokens, steps, self.hold_s.draw(rng), self.verify_s, float(rng.random() < self.correct))

    def decode_s(self, rng: Rng) -> float:
        return self.step_s

    def step(self, rng: Rng, batch: int) -> LearnerStep:
        train = self.train_s.draw(rng)
        return LearnerStep(train, self.publish_s, self.after_s, self.stage_s, self.pause_s, bool(rng.random() < self.applied))


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """Whole groups and whole batches of a real run, and its decode steps, drawn with replacement.

    ``replay``: a slot and a batch of that run get what they had there, so that model and run differ in the loop, not in luck.
    """

    groups: Mapping[Slot, tuple[SimRollout, ...]]
    decode: npt.NDArray[np.float64]
    steps: Mapping[int, LearnerStep]
    replay: bool = True

    def group(self, rng: Rng, slot: Slot, members: int) -> list[SimRollout]:
        known = self.groups.get(slot) if self.replay else None
        drawn = known or list(self.groups.values())[int(rng.integers(len(self.groups)))]
        return [drawn[i % len(drawn)] for i in range(members)]

    def decode_s(self, rng: Rng) -> float:
        return float(self.decode[int(rng.integers(len(self.decode)))])

    def step(self, rng: Rng, batch: int) -> LearnerStep:
        known = self.steps.get(batch) if self.replay else None
        return known or list(self.steps.values())[int(rng.integers(len(self.steps)))]
