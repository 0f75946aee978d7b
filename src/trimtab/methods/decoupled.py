"""Decoupled PPO's behavior weight, with AReaL's rejection."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from trimtab import functional as F
from trimtab.control.protocol import Composition, Ratio, View, Weighing, WeighMethod
from trimtab.control.proximal import ProximalOptions, check_agreement, need, proximal

if TYPE_CHECKING:
    from torch import Tensor


class DecoupledOptions(ProximalOptions):
    action: Literal["mask", "clamp", "none"] = Field("mask", description="what happens outside the bounds; none: no bound")
    level: Literal["token", "sequence"] = Field("token", description="what is judged; sequence with ratio: also what is weighed")
    metric: Literal["ratio", "k1", "k2", "k3"] = Field("ratio", description="what the bounds are on")
    aggregate: Literal["mean", "sum", "max"] = Field("mean", description="over a rollout's tokens (level = sequence); of log ratios")
    upper: float = Field(5.0, description="largest value that passes")
    lower: float | None = Field(None, description="smallest value that passes")

    @model_validator(mode="after")
    def _meaningful(self) -> DecoupledOptions:
        if self.lower is not None and self.lower >= self.upper:
            raise ValueError(f"lower = {self.lower} must be below upper = {self.upper}")
        if self.metric == "ratio" and (self.upper <= 0 or (self.lower or 0.0) < 0):
            raise ValueError("a ratio is positive: upper must be above 0 and lower at least 0")
        if self.action == "clamp" and self.metric != "ratio":
            raise ValueError(f"a weight cannot be clamped to bounds on {self.metric}; use metric = ratio, or action = mask")
        return self


class Decoupled(WeighMethod):
    """w_t = pi_proximal/pi_behavior per token, detached: what is left to correct when the objective's own ratio is current/proximal.

    Beside `ppo_decoupled` this is AReaL's decoupled PPO. The default rejection, tokens of w > 5 masked, is that of its published runs;
    its current code ships none, and then applies no behavior weight at all. With level = sequence and the ratio, all tokens of a
    rollout get the geometric mean as their weight, as there. k1 = log w, k2 = (log w)^2 / 2, k3 = 1/w - 1 + log w.

    Several updates per batch: the weight is fixed at the batch's start (recompute), and later updates move only current/proximal.
    ``a3po`` replaces the extra forward by interpolation between behavior and current policy.
    """

    name = "decoupled"
    source = "AReaL (arXiv 2505.24298), rejection as in its code, upper bound 5; A-3PO (arXiv 2512.06547)"
    summary = "behavior weight of decoupled PPO, with rejection"
    formula = "w_it = pi_prox/mu if pi_prox/mu <= 5 else 0"
    cost = "one scoring forward a batch; a3po: none"
    fails = "Token weights leave the prefix uncorrected, and tokens that became likelier by more than the bound stop teaching."
    Options = DecoupledOptions
    options: DecoupledOptions
    corrects = frozenset({Ratio.PROXIMAL_BEHAVIOR})

    def __init__(self, options: DecoupledOptions) -> None:
        super().__init__(options)
        self.needs = need(options.anchor)
        self._geometric = options.level == "sequence" and options.metric == "ratio" and options.action != "none"
        self.level: Literal["token", "sequence"] | None = "sequence" if self._geometric else "token"

    def check(self, chain: Composition) -> None:
        check_agreement(chain)

    def weigh(self, view: View) -> Weighing:
        o = self.options
        d_N = proximal(view, o.anchor) - view.behavior_N
        if o.action == "none":
            return Weighing(_ones(view), weight_N=F.ratios.exp_clamped(d_N))
        inside_N = self._inside(view, d_N)
        view.metric(f"decoupled/{o.action}ed", float((~inside_N).sum()), inside_N.shape[0])
        log_w_N = view.token(F.ratios.sequence_mean(d_N, view.rollout_N, view.score_R.shape[0])) if self._geometric else d_N
        if o.action == "mask":
            return Weighing(_ones(view), weight_N=F.ratios.exp_clamped(F.ratios.masked(log_w_N, inside_N)), keep_N=inside_N)
        bound_N = log_w_N.clamp(math.log(o.lower) if o.lower else -math.inf, math.log(o.upper))
        return Weighing(_ones(view), weight_N=F.ratios.exp_clamped(log_w_N.where(inside_N, bound_N)))

    def _inside(self, view: View, d_N: Tensor) -> Tensor:
        """Where the statistic lies within the bounds, bounds included; a NaN is never outside."""
        o, d_N = self.options, d_N.double()
        x_N = {
            "ratio": lambda: d_N,
            "k1": lambda: d_N,
            "k2": lambda: F.divergence.k2(d_N),
            "k3": lambda: F.divergence.k3(-d_N.clamp(min=-F.ratios.EXP_BOUND)),
        }[o.metric]()
        if o.level == "sequence":
            over = {"mean": F.ratios.sequence_mean, "sum": F.ratios.sequence_sum, "max": F.ratios.sequence_max}[o.aggregate]
            x_N = view.token(over(x_N, view.rollout_N, view.score_R.shape[0]))
        if o.metric == "ratio":
            return F.weights.keep_within(x_N, o.lower or 0.0, o.upper)
        return ~((x_N > o.upper) | (x_N < (-math.inf if o.lower is None else o.lower)))


def _ones(view: View) -> Tensor:
    """log 1 for every rollout."""
    return view.score_R.new_zeros(view.score_R.shape[0]).double()
