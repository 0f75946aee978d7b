"""BAPO: clip bounds that move until good tokens make up their share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from trimtab import functional as F
from trimtab.control.protocol import MethodOptions, ObjectiveMethod, Ratio, Status, SurveyMethod, View, Weighing
from trimtab.methods.ppo_clip import clip_loss
from trimtab.records import Decision

if TYPE_CHECKING:
    from torch import Tensor

    from trimtab.functional.clipping import Range


class BAPOOptions(MethodOptions):
    share: float = Field(0.4, gt=0, lt=1, description="rho_0: wanted share of tokens with A > 0; the repository's README: 0.5")
    form: Literal["net", "parts"] = Field("net", description="share of |sum| (as printed) or of the sum of both parts' sizes")
    low: float = Field(0.6, gt=0, lt=1, description="lower bound of r at the start")
    low_end: float = Field(0.9, gt=0, le=1, description="highest that the search may set the lower bound")
    low_step: float = Field(0.02, gt=0, description="step of the search for it")
    high: float = Field(1.2, gt=1, description="upper bound of r at the start")
    high_end: float = Field(3.0, gt=1, description="highest that the search may set the upper bound")
    high_step: float = Field(0.05, gt=0, description="step of the search for it")

    @model_validator(mode="after")
    def _ordered(self) -> BAPOOptions:
        if self.low > self.low_end or self.high > self.high_end:
            raise ValueError(f"bounds start at {self.low}, {self.high} and cannot end below that at {self.low_end}, {self.high_end}")
        return self


class BAPO(ObjectiveMethod, SurveyMethod):
    """PPO's clip between bounds of r = pi_current/pi_behavior that are searched for each update.

    While tokens of A > 0 make up less than ``share`` of the clipped surrogate, the upper bound rises (more good tokens keep their
    gradient), and once it is at its end the lower one (more bad tokens lose theirs). The search sees the whole update, anew at each of
    several updates per batch. ``net`` counts the share against |good + bad|, so it acts where bad outweighs good by more than
    1 + 1/share = 3.5; ``parts`` where it does by more than 1/share - 1 = 1.5.
    """

    name = "bapo"
    source = "Xi et al. 2025 (arXiv 2510.18927) from descriptions of the paper"
    status = Status.OUR_READING
    summary = "PPO clip whose bounds balance good and bad tokens"
    formula = "L = max(-r A, -clip(r, lo, hi) A); raise hi to 3, then lo to .9, while |P| / |P + N| < rho_0"
    cost = "a scoring forward unless the update is one micro-batch; at most 51 sums over the tokens"
    fails = "An update with hardly any good token drives both bounds to their ends, and good tokens then pass up to a ratio of 3."
    docs = "docs/methods/objectives.md"
    Options = BAPOOptions
    options: BAPOOptions
    advantage_only = True
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})

    def __init__(self, options: BAPOOptions) -> None:
        super().__init__(options)
        self._range: Range | None = None

    def survey(self, view: View, advantage_N: Tensor | None) -> None:
        o = self.options
        assert advantage_N is not None
        self._range = found = F.clipping.bapo_range(
            view.behavior_N,
            view.log_ratio_N,
            advantage_N,
            share=o.share,
            form=o.form,
            low=(o.low, o.low_end, o.low_step),
            high=(o.high, o.high_end, o.high_step),
        )
        view.metric("bapo/low", found.low)
        view.metric("bapo/high", found.high)
        if found.low > o.low or found.high > o.high:
            why = f"share of good tokens {found.statistic:.3g} < {o.share:g}"
            view.note(Decision(method=self.name, point="objective", what="clip range", amount=found.high, why=why))

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        assert self._range is not None, "survey comes first"
        return clip_loss(self.name, view, w, advantage_N, view.behavior_N, low=1.0 - self._range.low, high=self._range.high - 1.0)
