"""What flows through the loop: segments inside rollouts inside groups inside batches. NumPy only, frozen.

* A **Segment** is one token sequence to train on, exactly as it was sampled (token in, token out).
* A **Rollout** is one episode: its segments (usually one), its verifiable ``score`` and its shaped ``reward``.
* A **Group** is the rollouts of one prompt slot ``(epoch, index)``.
* A **Batch** is whole groups; a batch -> optimizer updates -> micro-batches.
* A **Version** names one set of weights: ``number`` rises by one at each publication, ``incarnation`` by one at each restore.

``age`` of a token = learner version number at consumption - the token's own; of a rollout = that of its *oldest* token.
Dimension suffixes used everywhere: ``_T`` positions of a segment, ``_N`` action tokens, ``_R`` rollouts, ``_G`` groups, ``_V`` vocabulary.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Self

import numpy as np
import numpy.typing as npt

from trimtab.foreign import shown

I16 = npt.NDArray[np.int16]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


EQUAL_RELATIVE, EQUAL_ABSOLUTE = 1e-6, 1e-8


def equal_rewards(rewards: npt.ArrayLike) -> bool:
    """The one definition of equal rewards: max - min <= max(1e-8, 1e-6 max|r|), which is what float32 leaves of a judge's score.

    Filters, credit and metrics ask here, so that none takes for a difference what another takes for rounding: an advantage made of
    rounding is as long as any other once it is divided by its own std. A NaN is equal to nothing.
    """
    r = np.asarray(rewards, dtype=np.float64)
    if r.size < 2:
        return True
    return bool(np.ptp(r) <= max(EQUAL_ABSOLUTE, EQUAL_RELATIVE * float(np.abs(r).max())))


class Outcome(StrEnum):
    """What the verifier found. An ``error`` is not a wrong answer: the rollout leaves its group, and so does one without a score."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSEABLE = "unparseable"
    TIMEOUT = "timeout"
    ERROR = "error"


class StopReason(StrEnum):
    """Why generation ended."""

    EOS = "eos"
    STOP = "stop"  # a stop sequence of the task
    LENGTH = "length"  # the token limit: the response is truncated
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The distribution sampled from: softmax(logits / temperature), cut to top-k, then to the smallest set of mass top_p."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 = off
    allowed: tuple[int, ...] | None = None  # only these token ids may be sampled

    @property
    def cut(self) -> bool:
        """True where the distribution has a kept set smaller than the vocabulary."""
        return self.top_p < 1.0 or self.top_k > 0 or self.allowed is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Ragged kept sets of the action tokens: the ids allowed at the i-th action token are ``ids[indptr[i]:indptr[i+1]]``."""

    indptr: I64
    ids: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One token sequence to train on, length T.

    ``behavior_logp`` is recorded when the token is sampled, under exactly the distribution it was sampled from (0 off the
    mask). ``versions`` holds the version number that sampled each token (-1 off the mask).
    """

    tokens: I32
    action_mask: Bool  # True = sampled by the policy
    behavior_logp: F32
    versions: I32
    turn: I16
    sampling: Sampling
    incarnation: int = 0
    reward: F32 | None = None  # step-level: 0 off the action mask, sums to the reward of the rollout
    kept: Kept | None = None

    def __post_init__(self) -> None:
        shape = self.tokens.shape
        columns = {"action_mask": self.action_mask, "behavior_logp": self.behavior_logp, "versions": self.versions, "turn": self.turn}
        if self.reward is not None:
            columns["reward"] = self.reward
        for name, column in columns.items():
            if column.shape != shape:
                raise ValueError(f"Segment.{name} has shape {column.shape}, tokens have {shape}; every column is one entry a token")
        if self.kept is not None and len(self.kept.indptr) != self.actions + 1:
            raise ValueError(f"Segment.kept has {len(self.kept.indptr) - 1} kept sets for {self.actions} action tokens")
        if len(shape) and shape[0] and bool(self.action_mask[0]):
            raise ValueError("Segment.action_mask[0] is True; the first token has no context to be sampled from, prepend a BOS")

    @property
    def actions(self) -> int:
        """Number of action tokens."""
        return int(np.count_nonzero(self.action_mask))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Wall-clock moments of one rollout, seconds since the epoch (0 where unknown)."""

    started: float = 0.0
    finished: float = 0.0
    verified: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One episode. ``score`` is the verifiable score; ``reward`` the shaped one.

    ``forgetting`` is how far the policy has moved on the part that older versions sampled (PACE): as the version that finished the
    rollout sees it (source ``swap``) or the learner on its arrival (``learner``). None where unknown, or where one version sampled all.
    """

    member: int
    segments: tuple[Segment, ...]
    score: float
    outcome: Outcome
    stop: StopReason
    reward: float | None = None  # None: equal to score
    timing: Timing = field(default_factory=Timing)
    forgetting: float | None = None
    forgetting_source: str = ""

    @property
    def actions(self) -> int:
        return sum(s.actions for s in self.segments)

    @property
    def judged(self) -> bool:
        """Whether there is a verdict on it: a score, and no error. A timeout has a score only under ``verifier.timeout = "zero"``."""
        return self.outcome is not Outcome.ERROR and isfinite(self.score)

    def versions(self) -> I32:
        """Versions of the action tokens, int32[actions]."""
        return np.concatenate([s.versions[s.action_mask] for s in self.segments]) if self.segments else np.zeros(0, np.int32)

    @property
    def oldest(self) -> int:
        """Version number of the oldest action token (-1 if there is none)."""
        v = self.versions()
        return int(v.min()) if v.size else -1

    @property
    def newest(self) -> int:
        v = self.versions()
        return int(v.max()) if v.size else -1


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """A place in the plan: the ``index``-th prompt of ``epoch``. Reaches exactly one terminal state."""

    epoch: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rollouts of one prompt slot. ``prompt`` is the row of the task's data; ``attempt`` rises with each retry."""

    slot: Slot
    prompt: int
    attempt: int
    seed: int
    task: str
    source: str
    rollouts: tuple[Rollout, ...]

    @property
    def oldest(self) -> int:
        """Version number of the oldest action token of any member (-1 if there is none)."""
        known = [r.oldest for r in self.rollouts if r.oldest >= 0]
        return min(known) if known else -1

    @property
    def scores(self) -> npt.NDArray[np.float64]:
        return np.array([r.score for r in self.rollouts], dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Whole groups, formed when the learner stood at ``version``. ``number`` counts consumed batches from 0."""

    number: int
    version: int
    groups: tuple[Group, ...]

    @property
    def rollouts(self) -> tuple[Rollout, ...]:
        return tuple(r for g in self.groups for r in g.rollouts)


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A name for one set of weights: (incarnation, number). Never names two sets."""

    incarnation: int
    number: int

    def next(self) -> "Version":
        return Version(self.incarnation, self.number + 1)

    def restored(self) -> "Version":
        """The name after a restore: the checkpoint's number under the next incarnation."""
        return Version(self.incarnation + 1, self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a method did at a control point, and why: ``method.point`` did ``what`` by ``amount`` because ``why``."""

    method: str
    point: str
    what: str
    amount: float = 0.0
    why: str = ""


Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class TrimtabError(Exception):
    """An error the user can act on. The message is one sentence: the field, its value, the remedy."""

    exit_code = 2

    @classmethod
    def field(cls, name: str, value: object, remedy: str) -> Self:
        return cls(f"{name} = {shown(value)}: {remedy}")


class StoppedByRule(TrimtabError):
    """A health or liveness rule ended the run (exit code 3)."""

    exit_code = 3


class StoppedEarly(TrimtabError):
    """A signal ended a run before it had anything to keep (exit code 130)."""

    exit_code = 130


class StoppedByDetector(StoppedByRule):
    """A detector with ``action = "stop"`` ended the run: what the numbers of training did, not what broke around them."""
