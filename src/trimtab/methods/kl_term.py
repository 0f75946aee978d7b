"""KL to a reference policy or to the behavior policy, added to the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import MethodOptions, Need, State, StepResult, SurveyMethod, TermMethod, View, Weighing

if TYPE_CHECKING:
    from torch import Tensor


class KLOptions(MethodOptions):
    """Shared by the term of the loss and the one in the reward."""

    beta: float = Field(gt=0, description="weight of the KL; with a target: its value at the start")
    estimator: Literal["k1", "k2", "k3"]
    target: float | None = Field(None, gt=0, description="KL per token that beta is steered to; unset: beta is fixed")
    horizon: int = Field(10_000, gt=0, description="rollouts over which beta adapts")


class Beta:
    """A fixed or adaptive coefficient: what an update saw moves it only once that update is applied."""

    def __init__(self, options: KLOptions) -> None:
        self._options = options
        self.value = options.beta
        self._seen: tuple[float, int] | None = None

    def see(self, kl: float, samples: int) -> None:
        """The update's mean KL per token and its rollouts."""
        self._seen = kl, samples

    def after(self, result: StepResult) -> None:
        o = self._options
        if self._seen is not None and result.applied and o.target is not None:
            kl, samples = self._seen
            self.value = F.divergence.adapted(self.value, kl, target=o.target, samples=samples, horizon=o.horizon)
        self._seen = None

    def state_dict(self) -> State:
        return {"beta": self.value}

    def load_state_dict(self, state: State) -> None:
        beta = state["beta"]
        assert isinstance(beta, float)
        self.value = beta


class KLTermOptions(KLOptions):
    beta: float = Field(0.04, gt=0, description="weight of the KL; with a target: its value at the start")
    estimator: Literal["k1", "k2", "k3"] = Field(
        "k3", description="of the KL from the log-ratio d: -d (k1), d^2 / 2 (k2), or exp(d) - 1 - d (k3)"
    )
    to: Literal["reference", "behavior"] = Field(
        "reference", description="whose KL: the frozen reference model, or the policy that sampled the token, which costs no model"
    )
    unbiased: bool = Field(False, description="multiply the estimate by pi/mu, differentiated too (DeepSeek-V3.2)")


class KLTerm(TermMethod, SurveyMethod):
    """Adds beta KL(current || anchor) per token to the owner's loss, reduced like it; neither weighted nor masked.

    The anchor is the reference model, or with ``to = behavior`` the policy that sampled the token: a pull back over the staleness itself,
    beside any objective (ours; Kimi's objective has the k2 form of it built in).

    With d = log anchor - log pi, as a *loss* the estimators differ from what they estimate, since tokens are not resampled:

    ====  ==================  =====================  ===================================================================
          value               d value / d log pi     its expectation under pi
    ====  ==================  =====================  ===================================================================
    k1    -d                  1                      zero: noise, no pull to the anchor; use it with ``unbiased`` only
    k2    d^2 / 2             -d                     the gradient of KL(pi || anchor)
    k3    e^d - 1 - d         1 - e^d                the gradient of KL(anchor || pi)
    ====  ==================  =====================  ===================================================================

    ``unbiased`` gives k1 and k3 the gradient of KL(pi || anchor), for stale tokens too, at the price of an importance ratio.
    The term reads current log-probs, so that it is taken anew at each of several updates per batch.
    """

    name = "kl_term"
    source = "DeepSeekMath (arXiv 2402.03300), Eq. 4 and beta; unbiased: DeepSeek-V3.2 (arXiv 2512.02556); target: arXiv 1909.08593"
    summary = "KL to the reference model, or to the behavior policy, as a term of the loss"
    formula = "L += beta k(d), d = log ref - log pi (or log mu - log pi): k1 = -d, k2 = d^2/2, k3 = e^d - 1 - d"
    cost = "a forward of the reference model a batch, and its weights; a target: also a scoring forward unless one micro-batch"
    fails = "Stale tokens are not the policy's own, so without `unbiased` the estimate is of another policy's drift."
    docs = "docs/methods/objectives.md"
    Options = KLTermOptions
    options: KLTermOptions

    def __init__(self, options: KLTermOptions) -> None:
        super().__init__(options)
        self.needs = Need.REFERENCE if options.to == "reference" else Need.NOTHING
        self.reads_ratios = options.unbiased or options.to == "behavior"
        self.beta = Beta(options)
        self.surveys = options.target is not None  # a fixed beta must not cost the scoring forward that a survey can

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        kl_N = F.divergence.estimate(self.options.estimator, self._anchor(view) - view.current)
        if self.options.unbiased:
            kl_N = kl_N * F.ratios.exp_clamped(view.current - view.behavior_N)
        view.metric("kl_term/kl", float(kl_N.detach().sum()), kl_N.shape[0])
        view.metric("kl_term/beta", self.beta.value)
        return self.beta.value * kl_N

    def _anchor(self, view: View) -> Tensor:
        return view.reference if self.options.to == "reference" else view.behavior_N

    def survey(self, view: View, advantage_N: Tensor | None) -> None:
        kl_N = F.divergence.estimate(self.options.estimator, self._anchor(view) - view.current.detach())
        self.beta.see(float(kl_N.double().mean()), view.score_R.shape[0])

    def after(self, result: StepResult) -> None:
        self.beta.after(result)

    def state_dict(self) -> State:
        return self.beta.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.beta.load_state_dict(state)
