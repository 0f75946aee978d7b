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
``survey(view, a)``   sees the *whole* update (every micro-batch, every rank) before any weight or loss of it: batch statistics
``objective(v,w,a)``  ``loss_N``, differentiable in ``view.current_N`` and ``view.entropy_N``; one owner, others add terms
``gradient(g)``       :class:`Keep` or :class:`Skip`: how much of the finished gradient is safe?
``step(s)``           multiplier in (0, 1] or :class:`Refuse`
``after(result)``     always called with what happened; the method decides what state to commit
====================  ======================================================================================================

``survey`` is optional and belongs to the weigh and objective points. At weigh it is called before the weights, with ``a`` = None (a
weigh method never sees advantages); at objective after credit, with ``advantage_N``. What it finds (a threshold, a mean) the method
keeps on itself until the next call. It costs a scoring forward unless the update is one micro-batch.

``cadence = {Point.CREDIT: "batch"}``: credit is assigned once a batch, before its first update, over all of its rollouts, with
``current_N`` = ``proximal_N``; every update (mini-batch, epoch) then uses its share of that advantage.

A method of your own imports all it needs from here. Configuration imports it too, so torch is imported for type checking only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from trimtab.control.learner_side import (
    Credit,
    Gradient,
    GradientCopy,
    Keep,
    Notes,
    Recorder,
    Refuse,
    Skip,
    StepResult,
    StepView,
    Totals,
    View,
    Weighing,
)
from trimtab.control.points import (
    Need,
    NormEstimator,
    Point,
    Rank,
    Ratio,
    Reduction,
    Status,
)
from trimtab.control.pool_side import GroupStats, PoolView, Reject, Selection
from trimtab.records import Json

if TYPE_CHECKING:
    from torch import Tensor

    from trimtab.control.chain import Chain

__all__ = [
    "Credit",
    "Gradient",
    "GradientCopy",
    "GroupStats",
    "Keep",
    "Method",
    "MethodOptions",
    "Need",
    "NormEstimator",
    "Notes",
    "Point",
    "PoolView",
    "Rank",
    "Ratio",
    "Recorder",
    "Reduction",
    "Refuse",
    "Reject",
    "Selection",
    "Skip",
    "State",
    "Status",
    "StepResult",
    "StepView",
    "Totals",
    "View",
    "Weighing",
]

State = dict[str, "Json | Sequence[Tensor] | Sequence[float]"]  # plain values, or tensors; all of it goes into the checkpoint


class MethodOptions(BaseModel):
    """Base of every method's typed options: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Method:
    """Base of all methods; see the module's table for the functions a subclass may define."""

    name: ClassVar[str]
    source: ClassVar[str]  # paper, equation
    status: ClassVar[Status] = Status.PUBLISHED
    summary: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    cost: ClassVar[str] = ""  # what it adds to a step, in a few words
    fails: ClassVar[str] = ""  # when it does harm or nothing, in one sentence
    docs: ClassVar[str] = ""  # the page that derives it, where there is one
    Options: ClassVar[type[MethodOptions]] = MethodOptions

    needs: Need = Need.NOTHING
    owns: frozenset[Point] = frozenset()  # points of which a chain has exactly one owner: credit, objective
    corrects: frozenset[Ratio] = frozenset()
    reads_ratios: bool = False  # uses importance ratios without correcting for one; they must be exact all the same
    uncorrected: bool = False  # weigh: the explicit consent to no correction
    cadence: Mapping[Point, Literal["batch", "update"]] = {}
    masks_only: bool = False  # weigh: drops tokens or rollouts and weighs none, so it composes with a weight for the same ratio
    linear: bool = False  # objective: linear in the advantage
    advantage_only: bool = False  # objective: without an advantage it has no gradient, whatever the ratio
    silent: bool = False  # credit: a group of equal scores gets zero credit whatever its log-probs, so it needs no backward
    norms: NormEstimator = "exact"  # credit under SEQ_NORMS: what the learner measures
    whole_update: bool = False  # credit under SEQ_NORMS: compares rollouts of the whole update, so norms are measured before any backward
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

    def formed(self, selection: Selection) -> None:
        """select: told that this selection became a batch; ``select`` itself may be polled and commits nothing."""

    def after(self, result: StepResult) -> None:
        """Told what happened to the update."""

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        if state:
            raise ValueError(f"method {self.name} keeps no state, the checkpoint has {sorted(state)}")

    @classmethod
    def points(cls) -> tuple[Point, ...]:
        """The control points this method acts at, in loop order."""
        return tuple(p for p in Point if hasattr(cls, p.value))
