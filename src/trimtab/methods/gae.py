"""Generalized advantage estimation over a learned critic's values: the credit of PPO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Credit, CreditMethod, MethodOptions, Need, View, Weighing

if TYPE_CHECKING:
    from torch import Tensor


class TraceOptions(MethodOptions):
    gamma: float = Field(1.0, gt=0, le=1, description="discount per action token")
    lam_actor: float = Field(0.95, ge=0, le=1, description="lambda of the advantages")
    alpha: float | None = Field(None, gt=0, description="lambda of the advantages grows with length instead: 1 - 1/(alpha L), at least 0")
    lam_critic: float = Field(1.0, ge=0, le=1, description="lambda of the critic's targets; 1: what was really collected")
    whiten: bool = Field(True, description="advantages get mean 0 and variance 1 over the action tokens of the batch")


def actor_lambda(options: TraceOptions, view: View) -> float | Tensor:
    """lambda of the advantages, one for all or one a rollout."""
    return options.lam_actor if options.alpha is None else F.traces.length_lambda(view.length_R, options.alpha)


def values(view: View) -> Tensor:
    """``values_N``, which the learner computes for methods that need values."""
    if view.values_N is None:
        raise RuntimeError("values are not computed; a method that reads them declares Need.VALUES")
    return view.values_N


class GAE(CreditMethod):
    """A_t = sum_l (gamma lam)^l delta_{t+l}, delta_t = r_t + gamma V_{t+1} - V_t, over action tokens only; R_t = V_t + A_t(lam_critic).

    Assigned once a batch from the values at its start; mini-batches and epochs share it. The published defaults are gamma 1, lambda
    0.95 or 1 (PPO for language models); ``alpha`` is the length-adaptive lambda of VAPO (there 0.05; 1.5 in re-implementations of
    SAO). The advantage says nothing about who sampled the continuation: a stale one is as good as a fresh one here.
    """

    name = "gae"
    source = "Schulman et al. 2016 (arXiv 1506.02438), Eq. 16; length-adaptive lambda: VAPO (arXiv 2504.05118)"
    summary = "generalized advantage estimation from a learned critic, action tokens only"
    formula = "A_t = sum_l (gamma lam)^l delta_{t+l}, delta_t = r_t + gamma V_{t+1} - V_t"
    cost = "a critic: its forward once a batch, its forward and backward at each of its updates; a second model where its kind is model"
    fails = "A critic that explains little is a constant baseline with a short horizon; a stale continuation counts like a fresh one."
    Options = TraceOptions
    options: TraceOptions
    needs = Need.VALUES
    cadence: Literal["batch", "update"] = "batch"

    def credit(self, view: View, w: Weighing) -> Credit:
        o = self.options
        traces = F.traces.gae(
            view.token_reward_N,
            values(view),
            view.length_R,
            boot_R=view.boot_R,
            gamma=o.gamma,
            lam_actor=actor_lambda(o, view),
            lam_critic=o.lam_critic,
        )
        advantage_N = F.traces.whiten(traces.advantage_N) if o.whiten else traces.advantage_N
        return Credit(advantage_N=advantage_N, return_N=traces.return_N)
