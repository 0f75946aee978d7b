"""M2PO in AReaL's form: a mask that bounds the second moment of the log-ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Composition, Ratio, SurveyMethod, View, Weighing, WeighMethod
from trimtab.control.proximal import ProximalOptions, check_agreement, need, proximal

if TYPE_CHECKING:
    from torch import Tensor


class M2POMaskOptions(ProximalOptions):
    budget: float = Field(0.04, gt=0, description="the second moment of what is kept stays below this")


class M2POMask(WeighMethod, SurveyMethod):
    """Tokens with the largest d^2, d = log mu - log pi_proximal, are masked until the mean of d^2 over the rest is below .04.

    The statistics are those of the whole update, over all micro-batches and ranks; AReaL takes them per micro-batch, so there the mask
    depends on the split. Tokens of equal d^2 stay or go together. The authors' own form, clip bounds from the harmful tokens, is
    another method. Several updates per batch: the budget is spent anew on each update's share of the tokens.
    """

    name = "m2po_mask"
    source = "M2PO (arXiv 2510.01161) as in AReaL's code, budget .04; authors' code differs"
    summary = "mask of the tokens that carry the second moment of the log-ratio"
    formula = "keep token if d^2 <= T, T the largest with mean(d^2 | d^2 <= T) < .04, d = log mu/pi_prox"
    cost = "one scoring forward a batch (a3po: one an update unless it is a single micro-batch), one sort"
    fails = (
        "It looks at no advantage, so tokens whose large ratio does no harm go too, and where most tokens drift only the "
        "unmoved ones still teach."
    )
    Options = M2POMaskOptions
    options: M2POMaskOptions
    corrects = frozenset({Ratio.PROXIMAL_BEHAVIOR})
    masks_only = True
    level: Literal["token", "sequence"] | None = "token"

    def __init__(self, options: M2POMaskOptions) -> None:
        super().__init__(options)
        self.needs = need(options.anchor)
        self._limit: float | None = None  # of the update at hand

    def check(self, chain: Composition) -> None:
        check_agreement(chain)

    def survey(self, view: View, advantage_N: Tensor | None) -> None:
        self._limit = F.weights.second_moment_limit(self._moment(view), self.options.budget)

    def weigh(self, view: View) -> Weighing:
        if self._limit is None:
            raise RuntimeError("m2po_mask weighs by a threshold of the whole update; survey() comes first")
        moment_N = self._moment(view)
        keep_N = ~(moment_N > self._limit)  # False comparisons keep NaN
        view.metric("m2po_mask/masked", float((~keep_N).sum()), keep_N.shape[0])
        none_R = view.score_R.new_zeros(view.score_R.shape[0]).double()
        return Weighing(none_R, weight_N=F.weights.nan_of(moment_N) + 1.0, keep_N=keep_N)

    def _moment(self, view: View) -> Tensor:
        return (view.behavior_N - proximal(view, self.options.anchor)).double().square()
