"""KL to a reference policy, taken off the reward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Need, ShapeMethod, State, StepResult, View
from trimtab.methods.kl_term import Beta, KLOptions

if TYPE_CHECKING:
    from torch import Tensor


class KLRewardOptions(KLOptions):
    beta: float = Field(0.001, gt=0, description="weight of the KL; with a target: its value at the start")
    estimator: Literal["k1", "k2", "k3"] = Field(
        "k1", description="of the KL from the log-ratio d: -d (k1), d^2 / 2 (k2), or exp(d) - 1 - d (k3)"
    )
    anchor: Literal["behavior", "proximal"] = Field("behavior", description="whose KL: what sampled the token, or the learner now")


class KLReward(ShapeMethod):
    """r_t -= beta KL estimate(anchor || reference) of the token, d = log reference - log anchor: k1 = -d, k2 = d^2/2, k3 = e^d - 1 - d.

    A number in the reward, not a term of the loss, so every estimator gives a meaningful gradient: credit assigns it like any reward.
    k1 is the one whose sum over the rollout is the log-ratio; k3's exponential is clamped at e^20 and can still swamp the score. Groups
    of equal scores are no longer equal, so they get a backward. Several updates per batch share the reward of the batch.
    """

    name = "kl_reward"
    source = "Ziegler et al. 2019 (arXiv 1909.08593), section 2; beta: VCPO's comparison (arXiv 2602.17616)"
    summary = "KL to the reference model as a cost in the reward"
    formula = "r_t <- r_t - beta k(d), d = log ref - log mu"
    cost = "a forward of the reference model a batch, and its weights; anchor = proximal: also a scoring forward"
    fails = "Under a group baseline and std the penalty is rescaled with the reward: where scores agree it is all that is learned."
    docs = "docs/methods/objectives.md"
    Options = KLRewardOptions
    options: KLRewardOptions

    def __init__(self, options: KLRewardOptions) -> None:
        super().__init__(options)
        self.needs = Need.REFERENCE | (Need.PROXIMAL if options.anchor == "proximal" else Need.NOTHING)
        self.beta = Beta(options)

    def shape(self, view: View) -> Tensor:
        anchor_N = view.proximal if self.options.anchor == "proximal" else view.behavior_N
        kl_N = F.divergence.estimate(self.options.estimator, (view.reference - anchor_N).double())
        n = kl_N.shape[0]
        self.beta.see(float(kl_N.sum()) / max(n, 1), view.score_R.shape[0])
        view.metric("kl_reward/kl", float(kl_N.sum()), n)
        view.metric("kl_reward/beta", self.beta.value)
        return -self.beta.value * kl_N

    def after(self, result: StepResult) -> None:
        self.beta.after(result)

    def state_dict(self) -> State:
        return self.beta.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.beta.load_state_dict(state)
