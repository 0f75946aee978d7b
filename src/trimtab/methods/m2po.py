"""M2PO: a clip range that spends a budget of second moment, as its authors released it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import MethodOptions, ObjectiveMethod, Ratio, SurveyMethod, View, Weighing
from trimtab.methods.ppo_clip import clip_loss
from trimtab.records import Decision

if TYPE_CHECKING:
    from torch import Tensor

    from trimtab.functional.clipping import Range


class M2POOptions(MethodOptions):
    budget: float = Field(0.04, gt=0, description="largest mean (log r)^2 of the harmful tokens")
    solve: Literal["code", "exact"] = Field("code", description="threshold at a token's value (released code), or the largest that fits")
    floor_low: float = Field(0.3, ge=0, lt=1, description="the range reaches at least this far below 1")
    floor_high: float = Field(0.5, ge=0, description="the range reaches at least this far above 1")


class M2PO(ObjectiveMethod, SurveyMethod):
    """PPO's clip with the widest range exp(-T)..exp(T) that keeps the second moment of the harmful tokens within a budget.

    Harmful are tokens that the update would push further from the behavior policy: A > 0 and r > 1, or A < 0 and r < 1. Within the
    budget nothing is clipped. The range is found over the whole update (the released code: per micro-batch), anew at each of several
    updates per batch. AReaL's method of the same name is another one: it drops tokens by (log mu - log pi_proximal)^2.
    """

    name = "m2po"
    source = "Zheng et al. 2025 (arXiv 2510.01161) in its released code; range over the whole update, `exact`: our reading"
    summary = "PPO clip whose range keeps a second moment within a budget"
    formula = "L = max(-r A, -clip(r, lo, hi) A); mean_harmful min((log r)^2, T^2) <= budget, lo = min(e^-T, .7), hi = max(e^T, 1.5)"
    cost = "a scoring forward unless the update is one micro-batch"
    fails = "The floors bind whenever T < 0.36, so a very stale batch is clipped at [0.7, 1.5] whatever the budget says."
    docs = "docs/methods/objectives.md"
    Options = M2POOptions
    options: M2POOptions
    advantage_only = True
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})

    def __init__(self, options: M2POOptions) -> None:
        super().__init__(options)
        self._range: Range | None = None

    def survey(self, view: View, advantage_N: Tensor | None) -> None:
        o = self.options
        assert advantage_N is not None
        self._range = found = F.clipping.m2po_range(view.log_ratio_N, advantage_N, budget=o.budget, solve=o.solve)
        view.metric("m2po/second_moment", found.statistic)
        if found.statistic > o.budget:
            why = f"second moment {found.statistic:.3g} > {o.budget:g}"
            view.note(Decision(method=self.name, point="objective", what="clip range", amount=1 + self._widths(found)[1], why=why))

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        assert self._range is not None, "survey comes first"
        low, high = self._widths(self._range)
        return clip_loss(self.name, view, w, advantage_N, view.behavior_N, low=low, high=high)

    def _widths(self, found: Range) -> tuple[float, float]:
        """How far the range reaches below and above 1."""
        return max(1.0 - found.low, self.options.floor_low), max(found.high - 1.0, self.options.floor_high)
