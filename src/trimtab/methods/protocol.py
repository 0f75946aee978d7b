"""The control points of the loop and what a method sees there.

A **method** is one file: a subclass of :class:`Method` that defines any subset of the point functions below. Which points it
acts at is read from which functions it defines; its class attributes are read at load, before anything runs.

====================  ======================================================================================================
``accept(group)``     pool: may this finished group stay? -> ``None`` or :class:`Reject`
``select(pool, n)``   pool: which waiting groups form this batch? -> :class:`Selection` or ``None`` (wait)
``shape(view)``       additive token reward, tensor ``_N``
``weigh(view)``       :class:`Weighing`: how much does each token or sequence count? never sees advantages; detached
``unit(view, w)``     ``q_N``: the learner measures ``norm2_R = ||grad sum q_N current_N||^2`` per rollout before ``credit``
``credit(view, w)``   :class:`Credit`: was this better than expected? exactly one owner in a chain
``objective(v,w,a)``  ``loss_N``, differentiable in ``view.current_N``; one owner
``gradient(g)``       :class:`Keep` or :class:`Skip`: how much of the finished gradient is safe?
``step(s)``           multiplier in (0, 1] or :class:`Refuse`
``after(result)``     always called with what happened; the method decides what state to commit
====================  ======================================================================================================

Configuration imports this module, so torch is imported for type checking only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, Flag, IntEnum, StrEnum, auto
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from trimtab import functional as F
from trimtab.records import Decision, Json

if TYPE_CHECKING:
    from torch import Tensor

    from trimtab.methods.chain import Chain

State = dict[str, Json]


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


class Need(Flag):
    """What must be computed for a method; the union over the chain plans which passes run."""

    NOTHING = 0
    SCORE = auto()  # current log-probs before credit is assigned
    PROXIMAL = auto()  # log-probs at the start of the batch
    VALUES = auto()
    REFERENCE = auto()
    VOCAB = auto()  # entropy and sum of squared probabilities
    SEQ_NORMS = auto()  # per-rollout gradient norms of unit()
    FORGETTING = auto()


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


class MethodOptions(BaseModel):
    """Base of every method's typed options: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Recorder(Protocol):
    """Where decisions and metrics of a step go."""

    def note(self, decision: Decision) -> None: ...
    def metric(self, name: str, numerator: float, denominator: float = 1.0) -> None: ...


@dataclass(slots=True)
class Notes:
    """A recorder that keeps what it is told: metrics as summed numerators and denominators, decisions in order."""

    decisions: list[Decision] = field(default_factory=list)
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)

    def note(self, decision: Decision) -> None:
        self.decisions.append(decision)

    def metric(self, name: str, numerator: float, denominator: float = 1.0) -> None:
        n, d = self.metrics.get(name, (0.0, 0.0))
        self.metrics[name] = (n + numerator, d + denominator)


# --------------------------------------------------------------------------------------------------------- pool side (NumPy)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """One finished group on arrival: verifiable scores, lengths and ages of its members."""

    scores_R: npt.NDArray[np.float64]
    lengths_R: npt.NDArray[np.int64]
    oldest: int
    mean_version: float
    now: int  # version of the learner
    truncated_R: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """Waiting groups, columnar, one row a group, in order of arrival."""

    ids: npt.NDArray[np.int64]
    entered: npt.NDArray[np.int64]  # learner version when the last member completed
    mean_version: npt.NDArray[np.float64]
    oldest: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]  # enqueue order
    forgetting: npt.NDArray[np.float64]  # NaN where unknown
    interrupted: npt.NDArray[np.bool_]  # spans more than one version
    score: npt.NDArray[np.float64]  # group mean
    length: npt.NDArray[np.float64]  # group mean, action tokens
    now: int
    batch_groups: int


@dataclass(frozen=True, slots=True)
class Reject:
    """A group that may not stay: its slot is freed and reported under ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """Ids of the groups that form the batch, and of those let go (``requeue``: let go, but their prompts come again)."""

    take: tuple[int, ...]
    reject: tuple[int, ...] = ()
    requeue: tuple[int, ...] = ()
    why: str = ""


# ------------------------------------------------------------------------------------------------------ learner side (torch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Denominators of one optimizer update over all micro-batches and ranks."""

    rollouts: int
    tokens: int
    groups: int
    max_length: int  # the constant of seq_mean_token_sum_norm
    reward_std: float = 0.0  # unbiased, over all rollouts: what std = "batch" divides by


def _same(x: Tensor) -> Tensor:
    return x


@dataclass(kw_only=True)
class View:
    """The action tokens and rollouts a learner-side method sees: flat, ``_N`` tokens in rollout order, ``_R`` rollouts.

    ``current_N`` is detached except inside ``objective``. Columns that no method of the chain needs are None.
    """

    # tokens
    behavior_N: Tensor
    rollout_N: Tensor  # int64: which rollout a token belongs to
    turn_N: Tensor
    age_N: Tensor  # learner version - version that sampled the token
    version_N: Tensor
    scale_N: Tensor  # the reduction's factor: loss = sum scale_N * loss_N
    current_N: Tensor | None = None
    proximal_N: Tensor | None = None
    reward_N: Tensor | None = None  # step-level and shaped addends
    values_N: Tensor | None = None
    reference_N: Tensor | None = None
    entropy_N: Tensor | None = None
    sum_p2_N: Tensor | None = None
    # rollouts
    score_R: Tensor
    reward_R: Tensor
    length_R: Tensor
    group_R: Tensor  # int64: which group a rollout belongs to
    terminated_R: Tensor  # bool: ended by itself, not by the token limit
    boot_R: Tensor | None = None
    norm2_R: Tensor | None = None
    # scalars
    groups: int
    totals: Totals
    mini_step: int = 0
    recorder: Recorder = field(default_factory=Notes)
    gather: Callable[[Tensor], Tensor] = _same  # x_R over all ranks, sorted by rollout id

    @property
    def current(self) -> Tensor:
        """``current_N``, where a pass has computed it."""
        if self.current_N is None:
            raise RuntimeError(
                "current log-probs are not computed at this point; a method that reads them before the forward declares Need.SCORE"
            )
        return self.current_N

    @property
    def log_ratio_N(self) -> Tensor:
        """log pi_current - log pi_behavior per token, detached."""
        return self.current.detach() - self.behavior_N

    @property
    def log_ratio_R(self) -> Tensor:
        """Its sum over each rollout's action tokens, float64."""
        return self.sum_R(self.log_ratio_N.double())

    def sum_R(self, x_N: Tensor) -> Tensor:
        """Sum of a token column over each rollout."""
        return x_N.new_zeros(self.score_R.shape[0]).index_add(0, self.rollout_N, x_N)

    def token(self, x_R: Tensor) -> Tensor:
        """A rollout column spread over its tokens."""
        return x_R[self.rollout_N]

    def weights(self, w: Weighing) -> Tensor:
        """``exp(log_scale_R) weight_N``, 0 where ``keep_N`` is False: the detached weight of each token, in the dtype of the log-probs."""
        return F.weights.token_weight(w.log_scale_R, self.rollout_N, w.weight_N, w.keep_N).to(self.behavior_N.dtype)

    def note(self, decision: Decision) -> None:
        self.recorder.note(decision)

    def metric(self, name: str, numerator: float, denominator: float = 1.0) -> None:
        self.recorder.metric(name, numerator, denominator)


@dataclass(frozen=True, slots=True)
class Weighing:
    """Importance weights: ``exp(log_scale_R)`` per rollout times ``weight_N`` per token, zero where ``keep_N`` is False.

    Masks never change a denominator. Weighings of several methods multiply.
    """

    log_scale_R: Tensor
    weight_N: Tensor | None = None
    keep_N: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Credit:
    """``advantage_R`` per rollout, or ``advantage_N`` per token (a critic's); ``return_N`` are the critic's targets."""

    advantage_R: Tensor | None = None
    advantage_N: Tensor | None = None
    return_N: Tensor | None = None


class Gradient(Protocol):
    """The finished gradient of the actor; how it is sharded is hidden. Norms are global, float64."""

    raw_norm: float  # before any method of the gradient point
    batch_id: int
    mini_step: int
    recorder: Recorder

    def norm(self) -> float: ...
    def dot(self, other: GradientCopy) -> float: ...
    def scale(self, factor: float) -> None: ...
    def axpy(self, alpha: float, other: GradientCopy) -> None: ...
    def copy(self) -> GradientCopy: ...


class GradientCopy(Protocol):
    """A kept copy of a gradient, sharded like it."""

    norm2: float

    def state(self) -> Sequence[Tensor]: ...


@dataclass(frozen=True, slots=True)
class Keep:
    """Go on with the gradient as it now is."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Take no step: nothing of the optimizer moves."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Take no step: nothing of the optimizer moves."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """What is known just before the optimizer step. ``log_ratio_R``: all rollouts of the update, all ranks, float64."""

    log_ratio_R: Tensor
    applied: int  # batches applied so far
    batch_id: int
    mini_step: int
    lag_zero: bool  # a calibration batch: sampled by the weights that its first update steps
    recorder: Recorder
    update_norm: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What happened to an update; told to every method."""

    applied: bool
    reason: str  # "" where applied
    multiplier: float
    batch_id: int
    mini_step: int
    raw_norm: float


class Status(Enum):
    PUBLISHED = "published"
    OUR_READING = "our reading"
    CONTROL = "control"


class Method:
    """Base of all methods; see the module's table for the functions a subclass may define."""

    name: ClassVar[str]
    source: ClassVar[str]  # paper, equation
    status: ClassVar[Status] = Status.PUBLISHED
    summary: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    Options: ClassVar[type[MethodOptions]] = MethodOptions

    needs: Need = Need.NOTHING
    owns: frozenset[Point] = frozenset()  # points of which a chain has exactly one owner: credit, objective
    corrects: frozenset[Ratio] = frozenset()
    reads_ratios: bool = False  # uses importance ratios without correcting for one; they must be exact all the same
    uncorrected: bool = False  # weigh: the explicit consent to no correction
    cadence: Mapping[Point, Literal["batch", "update"]] = {}
    linear: bool = False  # objective: linear in the advantage
    silent: bool = False  # credit: a group of equal scores gets zero credit whatever its log-probs, so it needs no backward
    level: Literal["token", "sequence"] | None = None  # weigh
    rank: Rank = Rank.CLIP
    reduction: Reduction | None = None  # a reduction this method insists on
    min_group: int = 1
    calibration: int = 0  # batches at lag 0 before admission opens
    min_depth: int = 0  # select: batches that samplers must run ahead, or there is nothing to choose from

    def __init__(self, options: MethodOptions) -> None:
        self.options = options

    def check(self, chain: Chain) -> None:
        """Refuse a chain this method cannot work in: raise ``TrimtabError`` with the reason and the remedy."""

    def after(self, result: StepResult) -> None:
        """Told what happened to the update."""

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        if state:
            raise ValueError(f"method {self.name} keeps no state, the checkpoint has {sorted(state)}")

    def points(self) -> tuple[Point, ...]:
        """The control points this method acts at, in loop order."""
        return tuple(p for p in Point if hasattr(self, p.value))
