"""What a method is: :class:`Method`, and a base class a control point.

A method *declares* where it acts by the bases it inherits and defines the function of each. Both are compared when the class is made:
a declared point without its function, a function whose point is not declared, or a method that acts nowhere is refused there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from trimtab.control.learner_side import Credit, Gradient, Keep, Refuse, Skip, StepResult, StepView, View, Weighing
from trimtab.control.points import Need, Point, Rank, Ratio, Reduction, SequenceNorms, Side, Status
from trimtab.control.pool_side import GroupStats, PoolView, Reject, Rescoring, Selection
from trimtab.control.setting import Setting
from trimtab.records import Json, TrimtabError

if TYPE_CHECKING:
    from torch import Tensor

State = dict[str, "Json | Sequence[Tensor] | Sequence[float]"]  # plain values, or tensors; all of it goes into the checkpoint


class MethodOptions(BaseModel):
    """Base of every method's typed options: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Method:
    """Base of all methods, through the bases of the points below. A family's common base that is no method yet says ``base=True``.

    Raises:
        TrimtabError: when the class is made, and its points and its functions do not agree.
    """

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
    corrects: frozenset[Ratio] = frozenset()
    reads_ratios: bool = False  # uses importance ratios without correcting for one; they must be exact all the same
    uncorrected: bool = False  # the explicit consent to no correction
    reduction: Reduction | None = None  # a reduction this method insists on
    min_group: int = 1
    calibration: int = 0  # batches at lag 0 before admission opens

    def __init_subclass__(cls, *, base: bool = False) -> None:
        super().__init_subclass__()
        if not base:
            _check_declared(cls)

    def __init__(self, options: MethodOptions) -> None:
        self.options = options

    def check(self, chain: Composition) -> None:
        """Refuse a chain this method cannot work in: raise ``TrimtabError`` with the reason and the remedy."""

    def after(self, result: StepResult) -> None:
        """Told what happened to the update: on the learner's side at once, on the pool's when the batch has been consumed."""

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        if state:
            raise ValueError(f"method {self.name} keeps no state, the checkpoint has {sorted(state)}")

    @classmethod
    def points(cls) -> tuple[Point, ...]:
        """The control points this method acts at, in loop order."""
        return tuple(point for point, bases in _POINTS.items() if issubclass(cls, bases))

    @classmethod
    def sides(cls) -> frozenset[Side]:
        """Where it is called; a method of both sides is one instance on each, and what one keeps the other does not see."""
        return frozenset(point.side for point in cls.points())

    @classmethod
    def owns(cls) -> frozenset[Point]:
        """Those of them of which a chain has at most one owner."""
        return frozenset(point for point, base in _OWNERS.items() if issubclass(cls, base))

    @classmethod
    def functions(cls) -> tuple[str, ...]:
        """The functions it defines for its declared bases, as the chain calls them."""
        return tuple(function for function, bases in _FUNCTIONS.items() if issubclass(cls, bases))


M = TypeVar("M", bound=Method)


class Composition(Protocol):
    """What a method may look at when it checks the chain it stands in, and where it may say something of it."""

    @property
    def setting(self) -> Setting: ...
    @property
    def methods(self) -> Sequence[Method]: ...
    @property
    def objective_owner(self) -> ObjectiveMethod: ...
    def acting(self, base: type[M]) -> Sequence[M]: ...  # the methods that inherit this base, in loop order
    def say(self, sentence: str) -> None: ...  # a note that the run shows at its start


# ------------------------------------------------------------------------------------------------------------------------ pool side


class AcceptMethod(Method, base=True):
    def accept(self, group: GroupStats) -> Reject | None:
        """May this finished group stay? A rejection becomes a decision; what else it does, it notes on ``group.recorder``."""
        raise NotImplementedError


class SelectMethod(Method, base=True):
    min_depth: int = 0  # batches that samplers must run ahead, or there is nothing to choose from
    rescoring: Rescoring | None = None  # where the forgetting scores it reads come from

    def select(self, pool: PoolView, want: int) -> Selection | None:
        """Which waiting groups form this batch? None: wait. Pure: it may be asked again before the batch forms.

        What the selection lets go becomes a decision with its ``why``; so does whatever else is noted on the view's recorder, once the
        selection is carried out.
        """
        raise NotImplementedError

    def formed(self, selection: Selection) -> None:
        """Told that this selection became a batch: commit state."""


# --------------------------------------------------------------------------------------------------------------------- learner side


class ShapeMethod(Method, base=True):
    def shape(self, view: View) -> Tensor:
        """What is added to the reward of each token, ``_N``."""
        raise NotImplementedError


class WeighMethod(Method, base=True):
    masks_only: bool = False  # drops tokens or rollouts and weighs none, so it composes with a weight for the same ratio
    level: Literal["token", "sequence"] | None = None

    def weigh(self, view: View) -> Weighing:
        """How much does each token or sequence count? Never sees advantages; detached."""
        raise NotImplementedError


class CreditMethod(Method, base=True):
    """The one owner of a chain's credit."""

    cadence: Literal["batch", "update"] = "update"
    silent: bool = False  # a group of equal scores gets zero credit whatever its log-probs, so it needs no backward

    def credit(self, view: View, w: Weighing) -> Credit:
        """Was this better than expected?"""
        raise NotImplementedError


class NormCreditMethod(CreditMethod, base=True):
    """Credit that reads the gradient norms of rollouts, ``view.norm2_R``; ``norms`` None: this one, by its options, does not."""

    norms: SequenceNorms | None = SequenceNorms()

    def unit(self, view: View, w: Weighing) -> Tensor:
        """``q_N``: the learner measures ``norm2_R = ||grad sum q_N current_N||^2`` per rollout before ``credit``."""
        raise NotImplementedError


class ObjectiveMethod(Method, base=True):
    """The one owner of a chain's objective."""

    linear: bool = False  # in the advantage
    advantage_only: bool = False  # without an advantage it has no gradient, whatever the ratio

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        """``loss_N``, differentiable in ``view.current_N`` and ``view.entropy_N``."""
        raise NotImplementedError


class TermMethod(Method, base=True):
    """Adds to the objective that another method owns."""

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        """What is added to ``loss_N``, differentiable in ``view.current_N`` and ``view.entropy_N``."""
        raise NotImplementedError


class SurveyMethod(Method, base=True):
    """Beside :class:`WeighMethod`, :class:`ObjectiveMethod` or :class:`TermMethod`: reads the whole update before any part of it."""

    surveys: bool = True  # False: this one, by its options, does not, and costs no scoring forward

    def survey(self, view: View, advantage_N: Tensor | None) -> None:
        """At weigh ``advantage_N`` is None: a weigh method never sees advantages. What it finds it keeps on itself until the next call."""
        raise NotImplementedError


class GradientMethod(Method, base=True):
    rank: Rank = Rank.CLIP

    def gradient(self, g: Gradient) -> Keep | Skip:
        """How much of the finished gradient is safe?"""
        raise NotImplementedError


class AligningMethod(GradientMethod, base=True):
    """Keeps the previous gradient itself, so that the learner need not sketch it."""

    rank: Rank = Rank.ALIGN
    cosine: float | None = None  # of the update under way with the previous gradient, where there is one


class StepMethod(Method, base=True):
    def step(self, s: StepView) -> float | Refuse:
        """How far do we move? A multiplier in (0, 1]."""
        raise NotImplementedError


_POINTS: Mapping[Point, tuple[type[Method], ...]] = {
    Point.ACCEPT: (AcceptMethod,),
    Point.SELECT: (SelectMethod,),
    Point.SHAPE: (ShapeMethod,),
    Point.WEIGH: (WeighMethod,),
    Point.CREDIT: (CreditMethod,),
    Point.OBJECTIVE: (ObjectiveMethod, TermMethod),
    Point.GRADIENT: (GradientMethod,),
    Point.STEP: (StepMethod,),
}
_OWNERS: Mapping[Point, type[Method]] = {
    Point.SELECT: SelectMethod,
    Point.CREDIT: CreditMethod,
    Point.OBJECTIVE: ObjectiveMethod,
}
_FUNCTIONS: Mapping[str, tuple[type[Method], ...]] = {
    **{point.value: bases for point, bases in _POINTS.items()},
    "survey": (SurveyMethod,),
    "unit": (NormCreditMethod,),
}
_OPTIONAL: Mapping[str, tuple[type[Method], ...]] = {"formed": (SelectMethod,)}


def _check_declared(cls: type[Method]) -> None:
    here = f"{cls.__module__}.{cls.__qualname__}"
    defined = {name for c in cls.__mro__ if c.__module__ != __name__ for name in vars(c)}
    for function, bases in {**_FUNCTIONS, **_OPTIONAL}.items():
        named = " or ".join(base.__name__ for base in bases)
        if function in defined and not issubclass(cls, bases):
            raise TrimtabError(f"method class {here} defines {function}() and does not declare it; inherit {named}")
        if function not in defined and issubclass(cls, bases) and function not in _OPTIONAL:
            raise TrimtabError(f"method class {here} inherits {named} and lacks its function; define {function}()")
    if issubclass(cls, SurveyMethod) and not {Point.WEIGH, Point.OBJECTIVE} & set(cls.points()):
        raise TrimtabError(f"method class {here} surveys the update for no point; inherit WeighMethod, ObjectiveMethod or TermMethod, too")
    if not cls.points():
        raise TrimtabError(f"method class {here} acts at no control point; inherit the base of one, such as WeighMethod or StepMethod")
