"""A chain: the methods of a run, validated together and called in loop order.

Composition is configuration: weights multiply, masks intersect, multipliers multiply, any refusal wins. Credit and objective
have exactly one owner. A later entry replaces a *bundle's* owner, mask or weight for the same ratio; two that the user wrote
are refused at load. What a chain lacks it gets, and says so: ``grpo`` credit, ``linear`` objective, ``norm_clip(1.0)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from trimtab.control.clash import clash
from trimtab.control.method import M
from trimtab.control.protocol import (
    AcceptMethod,
    AligningMethod,
    Credit,
    CreditMethod,
    Gradient,
    GradientMethod,
    GroupStats,
    Keep,
    Method,
    Need,
    NormCreditMethod,
    NormEstimator,
    ObjectiveMethod,
    Point,
    Rank,
    Ratio,
    Refuse,
    Reject,
    Rescoring,
    SelectMethod,
    SequenceNorms,
    Setting,
    ShapeMethod,
    Skip,
    State,
    StepMethod,
    StepResult,
    StepView,
    SurveyMethod,
    TermMethod,
    View,
    Weighing,
    WeighMethod,
)
from trimtab.control.registry import ChainMember, MethodEntry, build, expand, written
from trimtab.records import Decision, Json, TrimtabError

if TYPE_CHECKING:
    from torch import Tensor

# Correcting either makes stale rollouts usable; current/proximal alone covers only the updates within a batch.
_STALE = {Ratio.CURRENT_BEHAVIOR, Ratio.PROXIMAL_BEHAVIOR}

_DEFAULTS: tuple[tuple[Point, str, dict[str, Json]], ...] = (
    (Point.CREDIT, "grpo", {}),
    (Point.OBJECTIVE, "linear", {}),
    (Point.GRADIENT, "norm_clip", {"max_norm": 1.0}),
)


@dataclass(slots=True)
class Chain:
    """The validated methods of a run. ``said`` lists what was added or replaced, in words."""

    members: list[ChainMember]
    setting: Setting
    said: list[str] = field(default_factory=list)

    @staticmethod
    def resolve(entries: Sequence[MethodEntry], setting: Setting) -> Chain:
        """Expand bundles, settle owners, add what is missing, and let every method check the whole."""
        if not entries and setting.asynchronous:
            raise TrimtabError.field(
                "methods", [], 'an asynchronous run needs a correction; write ["vcpo"], or ["none"] to consent to none'
            )
        chain = Chain(members=[], setting=setting)
        for name, options, origin in expand(entries):
            chain._add(ChainMember(build(name, options), origin))
        for point, name, options in _DEFAULTS:
            if not any(_fills(m, point) for m in chain.methods):
                chain.members.append(ChainMember(build(name, options), "default"))
                lacking = "gradient clip" if point is Point.GRADIENT else f"{point.value} method"
                chain.say(f"no {lacking}: added {written(name, options)}")
        chain._order()
        chain._check()
        return chain

    def _add(self, new: ChainMember) -> None:
        for old in list(self.members):
            why = clash(old.method, new.method)
            if not why:
                continue
            if old.origin == "" or old.origin == new.origin:
                after = f", or write {old.method.name} after {new.origin} to replace its {new.method.name}" if new.origin else ""
                raise TrimtabError.field("methods", [old.method.name, new.method.name], f"both {why}; keep one of them{after}")
            self.members.remove(old)
            self.say(f"{new.method.name} replaces {old.method.name} of {old.origin}: both {why}")
        self.members.append(new)

    def _order(self) -> None:
        """Loop order: by first point, at the gradient point by rank, else as listed (sort is stable)."""
        points = list(Point)

        def place(member: ChainMember) -> tuple[int, int]:
            method = member.method
            first = method.points()[0]
            return points.index(first), method.rank if first is Point.GRADIENT and isinstance(method, GradientMethod) else 0

        self.members.sort(key=place)

    def _check(self) -> None:
        s = self.setting
        corrected = {ratio for m in self.methods for ratio in m.corrects}
        if s.asynchronous and not corrected & _STALE and not any(m.uncorrected for m in self.methods):
            listed = [m.method.name for m in self.members if m.origin != "default"]
            raise TrimtabError.field(
                "methods", listed, 'nothing corrects for stale rollouts; add a weigh method such as "seq_tis", or "none" to consent to none'
            )
        readers = [m.name for m in self.methods if m.corrects or m.reads_ratios]
        if s.cut and not s.reports_kept and readers:
            raise TrimtabError(
                f"rollout.top_p < 1 or rollout.top_k > 0 cuts the distribution and this engine cannot report the kept sets, so the ratios "
                f"of {', '.join(readers)} would be wrong; use top_p = 1 and top_k = 0, or an engine that reports kept sets"
            )
        for m in self.methods:
            if s.group_size < m.min_group:
                raise TrimtabError.field(
                    "rollout.group_size", s.group_size, f"{m.name} compares the members of a group and needs at least {m.min_group}"
                )
            if m.reduction is not None and m.reduction != s.reduction:
                raise TrimtabError.field("learner.reduction", s.reduction.value, f"{m.name} needs {m.reduction.value}")
            m.check(self)

    # ------------------------------------------------------------------------------------------------ facts
    @property
    def methods(self) -> list[Method]:
        return [m.method for m in self.members]

    def acting(self, base: type[M]) -> list[M]:
        """The methods that inherit this base, in loop order."""
        return [m for m in self.methods if isinstance(m, base)]

    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    @property
    def credit_alone(self) -> bool:
        """Is an advantage all that moves a token? Not with an additive term, nor under an objective with a pull of its own."""
        return not self.terms and self.objective_owner.advantage_only

    @property
    def credit_owner(self) -> CreditMethod:
        return self.acting(CreditMethod)[0]

    @property
    def objective_owner(self) -> ObjectiveMethod:
        return self.acting(ObjectiveMethod)[0]

    @property
    def terms(self) -> list[TermMethod]:
        """What adds to the owner's loss."""
        return self.acting(TermMethod)

    @property
    def aligner(self) -> AligningMethod | None:
        """The method that compares each gradient with the previous one, if there is one."""
        return next(iter(self.acting(AligningMethod)), None)

    def surveying(self, point: Point) -> list[SurveyMethod]:
        """Methods of this point (weigh or objective) that need to see the whole update first."""
        return [m for m in self.acting(SurveyMethod) if m.surveys and point in m.points()]

    @property
    def needs(self) -> Need:
        return reduce(lambda a, b: a | b, (m.needs for m in self.methods), Need.NOTHING)

    @property
    def sequence_norms(self) -> SequenceNorms | None:
        """The per-rollout gradient norms that the learner measures for the credit owner, if it reads any."""
        owner = self.credit_owner
        return owner.norms if isinstance(owner, NormCreditMethod) else None

    @property
    def norm_estimator(self) -> NormEstimator:
        """What such norms are of."""
        return (self.sequence_norms or SequenceNorms()).estimator

    @property
    def rescoring(self) -> Rescoring | None:
        """Where the forgetting scores that a method reads come from, if one does."""
        return next((m.rescoring for m in self.acting(SelectMethod) if m.rescoring is not None), None)

    @property
    def calibration(self) -> int:
        """Batches to run at lag 0 before admission opens."""
        return max((m.calibration for m in self.methods), default=0)

    def describe(self) -> list[dict[str, Json]]:
        """The resolved list, as ``config show`` prints it and ``methods`` accepts it."""
        return [{"name": m.name, **m.options.model_dump(mode="json")} for m in self.methods]

    # ------------------------------------------------------------------------------------------------ pool side
    def accept(self, group: GroupStats) -> Reject | None:
        for m in self.acting(AcceptMethod):
            verdict = m.accept(group)
            if verdict is not None:
                return verdict
        return None

    @property
    def selector(self) -> SelectMethod | None:
        return next(iter(self.acting(SelectMethod)), None)

    # ------------------------------------------------------------------------------------------------ learner side
    def shape(self, view: View) -> Tensor | None:
        """Sum of the shaped token rewards, or None."""
        added = [m.shape(view) for m in self.acting(ShapeMethod)]
        return sum(added[1:], added[0]) if added else None

    def weigh(self, view: View) -> Weighing:
        """The product of all weighings; one where there is none."""
        total = Weighing(view.score_R.new_zeros(view.score_R.shape[0]).double())
        for m in self.acting(WeighMethod):
            w = m.weigh(view)
            weight = w.weight_N if total.weight_N is None else total.weight_N if w.weight_N is None else total.weight_N * w.weight_N
            keep = w.keep_N if total.keep_N is None else total.keep_N if w.keep_N is None else total.keep_N & w.keep_N
            total = Weighing(total.log_scale_R + w.log_scale_R, weight, keep)
        return total

    def unit(self, view: View, w: Weighing) -> Tensor:
        owner = self.credit_owner
        if not isinstance(owner, NormCreditMethod):
            raise RuntimeError(f"{owner.name} reads no gradient norms, so there is no unit to measure them by")
        return owner.unit(view, w)

    def credit(self, view: View, w: Weighing) -> Credit:
        return self.credit_owner.credit(view, w)

    def survey(self, point: Point, view: View, advantage_N: Tensor | None = None) -> None:
        """Show the whole update to the methods of the point that ask for it."""
        for m in self.surveying(point):
            m.survey(view, advantage_N)

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        """The owner's loss_N."""
        return self.objective_owner.objective(view, w, advantage_N)

    def term(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor | None:
        """The sum of the additive terms' loss_N, or None where there is none."""
        added = [m.objective(view, w, advantage_N) for m in self.terms]
        return sum(added[1:], added[0]) if added else None

    def gradient(self, g: Gradient) -> Keep | Skip:
        for m in self.acting(GradientMethod):
            verdict = m.gradient(g)
            if isinstance(verdict, Skip):
                g.recorder.note(Decision(method=m.name, point="gradient", what="skipped", why=verdict.reason))
                return Skip(f"{m.name}: {verdict.reason}")
        return Keep()

    def step(self, s: StepView) -> float | Refuse:
        """The product of the multipliers; the first refusal wins, but every method is asked (each keeps its own state)."""
        total, refused = 1.0, None
        for m in self.acting(StepMethod):
            verdict = m.step(s)
            if not isinstance(verdict, Refuse) and not 0.0 < verdict <= 1.0:  # NaN included: a broken statistic must not become a step
                verdict = Refuse(f"multiplier {verdict} is outside (0, 1]")
            if isinstance(verdict, Refuse):
                s.recorder.note(Decision(method=m.name, point="step", what="refused", why=verdict.reason))
                refused = refused or Refuse(f"{m.name}: {verdict.reason}")
            else:
                total *= verdict
        return refused or total

    def after(self, result: StepResult) -> None:
        for m in self.methods:
            m.after(result)

    # ------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> dict[str, State]:
        return {m.name: m.state_dict() for m in self.methods}

    def load_state_dict(self, state: dict[str, State]) -> None:
        mine = {m.name for m in self.methods}
        if mine != set(state):
            raise TrimtabError.field("methods", sorted(mine), f"the checkpoint was made with {sorted(state)}; use the same list to resume")
        for m in self.methods:
            m.load_state_dict(state[m.name])


def _fills(m: Method, point: Point) -> bool:
    """Is this method what the chain would otherwise get by default?"""
    return isinstance(m, GradientMethod) and m.rank is Rank.CLIP if point is Point.GRADIENT else point in m.owns()
