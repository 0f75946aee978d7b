"""The learner's side of a chain: called in loop order by the learner's thread, and by nobody else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.control.protocol import (
    Credit,
    Gradient,
    GradientMethod,
    Keep,
    NormCreditMethod,
    Point,
    Refuse,
    ShapeMethod,
    Skip,
    StepMethod,
    StepView,
    View,
    Weighing,
    WeighMethod,
)
from trimtab.control.roster import ChainSide
from trimtab.records import Decision

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class LearnerChain(ChainSide):
    """The methods that act at shape, weigh, credit, objective, gradient and step. ``calibration``: the whole chain's."""

    calibration: int = 0

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
