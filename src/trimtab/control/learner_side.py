"""What a method sees and answers on the learner's side: flat tensors of an update, the finished gradient, the step.

Configuration imports this module through the protocol, so torch is imported for type checking only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from trimtab import functional as F
from trimtab.records import Decision

if TYPE_CHECKING:
    import torch
    from torch import Tensor


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

    def count(self, decision: Decision) -> None:
        """Note a decision whose amount counts; one with the same words as before adds to it."""
        for i, known in enumerate(self.decisions):
            if replace(known, amount=decision.amount) == decision:
                self.decisions[i] = replace(known, amount=known.amount + decision.amount)
                return
        self.decisions.append(decision)

    def add(self, other: Notes) -> None:
        """Take over what another was told."""
        self.decisions = [*other.decisions, *self.decisions]
        for name, (numerator, denominator) in other.metrics.items():
            self.metric(name, numerator, denominator)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Denominators of one optimizer update over all micro-batches and ranks."""

    rollouts: int
    tokens: int
    groups: int
    max_length: int  # the constant of seq_mean_token_sum_norm
    reward_std: float = 0.0  # unbiased, over all rollouts: what std = "batch" divides by


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

    @property
    def proximal(self) -> Tensor:
        """``proximal_N``: log pi of the learner as it stood at the start of the batch (Need.PROXIMAL)."""
        if self.proximal_N is None:
            raise RuntimeError("proximal log-probs are not computed; a method that reads them declares Need.PROXIMAL")
        return self.proximal_N

    @property
    def reference(self) -> Tensor:
        """``reference_N``: log pi of the frozen reference model (Need.REFERENCE)."""
        if self.reference_N is None:
            raise RuntimeError("reference log-probs are not computed; a method that reads them declares Need.REFERENCE")
        return self.reference_N

    @property
    def token_reward_N(self) -> Tensor:
        """The reward of each token, float64, summing to ``reward_R``: step-level and shaped addends where they arose, and what is
        left of the rollout's reward (all of it, where nothing is step-level) on its last action token."""
        step_N = self.reward_N.double() if self.reward_N is not None else self.reward_R.new_zeros(self.rollout_N.shape[0])
        rest_R = self.reward_R.double() - self.sum_R(step_N)
        last_R = self.length_R.cumsum(0) - 1
        has_R = self.length_R > 0
        return step_N.index_add(0, last_R[has_R], rest_R[has_R])

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

    @property
    def weight_R(self) -> Tensor: ...  # mean applied weight of each rollout's tokens, masked ones 0; all rollouts of the update, float64
    @property
    def length_R(self) -> Tensor: ...  # their action tokens
    def norm(self) -> float: ...
    def dot(self, other: GradientCopy) -> float: ...
    def scale(self, factor: float) -> None: ...
    def axpy(self, alpha: float, other: GradientCopy) -> None: ...
    def copy(self, dtype: torch.dtype | None = None) -> GradientCopy: ...
    def restored(self, parts: Sequence[Tensor]) -> GradientCopy | None: ...  # a copy from a checkpoint; None where it does not fit
    def split(self) -> Mapping[str, Gradient]: ...  # the same numbers by parameter group: embedding, each layer, the rest


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
