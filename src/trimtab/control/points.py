"""The words in which a method says where it acts and what it needs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, Flag, IntEnum, StrEnum, auto
from typing import Literal


class Side(StrEnum):
    """Whose thread calls a method: the pool's (whoever holds its lock), or the learner's. Neither sees what the other's methods keep."""

    POOL = "pool"
    LEARNER = "learner"


class Point(StrEnum):
    """Where in the loop a method acts, in loop order."""

    ACCEPT = "accept"
    SELECT = "select"
    SHAPE = "shape"
    WEIGH = "weigh"
    CREDIT = "credit"
    OBJECTIVE = "objective"
    GRADIENT = "gradient"
    STEP = "step"

    @property
    def side(self) -> Side:
        return Side.POOL if self in (Point.ACCEPT, Point.SELECT) else Side.LEARNER


class Need(Flag):
    """What must be computed for a method; the union over the chain plans which passes run."""

    NOTHING = 0
    SCORE = auto()  # current log-probs before credit is assigned
    PROXIMAL = auto()  # log-probs at the start of the batch
    VALUES = auto()
    REFERENCE = auto()
    VOCAB = auto()  # entropy and sum of squared probabilities


NormEstimator = Literal["exact", "sketch", "last_layer"]
"""What stands for a rollout's gradient norm: that of all parameters, random projections of the top layers, the LM head's alone."""


@dataclass(frozen=True, slots=True)
class SequenceNorms:
    """The per-rollout gradient norms that a credit owner asks for. ``whole_update``: it compares rollouts of the whole update, so they
    are measured before any backward."""

    estimator: NormEstimator = "exact"
    whole_update: bool = False


class Ratio(StrEnum):
    """The importance ratio a method corrects for; two methods of a chain may not correct the same one."""

    CURRENT_BEHAVIOR = "current/behavior"
    PROXIMAL_BEHAVIOR = "proximal/behavior"
    CURRENT_PROXIMAL = "current/proximal"


class Rank(IntEnum):
    """Order at the gradient point: first align, then clip; list order within a rank."""

    ALIGN = 0
    CLIP = 1


class Reduction(StrEnum):
    """How per-token losses become one number. All denominators are known before the first backward of an update."""

    SEQ_MEAN_TOKEN_MEAN = "seq_mean_token_mean"  # sum_i (1/R) (1/L_i) sum_t
    TOKEN_MEAN = "token_mean"  # sum_it / sum_i L_i
    SEQ_MEAN_TOKEN_SUM = "seq_mean_token_sum"  # sum_i (1/R) sum_t
    SEQ_MEAN_TOKEN_SUM_NORM = "seq_mean_token_sum_norm"  # the same over a constant length (Dr.GRPO)


class Status(Enum):
    """Where a method's mathematics comes from."""

    PUBLISHED = "published"
    OUR_READING = "our reading"
    CONTROL = "control"
