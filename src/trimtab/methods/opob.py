"""The first half of VCPO: the off-policy optimal baseline. The bundle ``vcpo`` (Huang et al. 2026, arXiv 2602.17616) is

    seq_tis(c=8), opob, linear, norm_clip(1.0), ess

The estimator with a constant baseline b per group, ``G(b) = sum_i w_i (R_i - b) u_i`` with ``u_i = grad log pi(tau_i)``, has the
second moment ``sum_i w_i^2 |u_i|^2 (R_i - b)^2``, minimal at

    b* = sum_i W_i R_i / sum_i W_i,    W_i = w_i^2 |u_i|^2,    A_i = (R_i - b*) / std of the group
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from trimtab import functional as F
from trimtab.control.protocol import Composition, Credit, Need, NormCreditMethod, SequenceNorms, View, Weighing, WeighMethod
from trimtab.methods.grpo import StdOptions, inverse_std
from trimtab.records import TrimtabError

if TYPE_CHECKING:
    from torch import Tensor


class OPOBOptions(StdOptions):
    weighting: Literal["paper", "exact", "repo"] = Field(
        "paper", description="of a rollout in b*: w^2 |u|^2; the square of its whole contribution to this update; or the released code's"
    )
    norms: Literal["exact", "sketch", "last_layer", "length"] = Field(
        "exact", description="gradient norms: of all parameters, projections of the top layers, the LM head's, or sqrt of the length"
    )
    scope: Literal["group", "batch"] = Field("group", description="one baseline a group, or one over the whole update")
    aggregation: Literal["mean", "median", "winsorized"] = Field("mean", description="weighted; winsorized: clipped to 5 and 95 % first")
    leave_one_out: bool = Field(False, description="ablation: b of the other rollouts; unbiased, and no damper of outliers any more")

    @model_validator(mode="after")
    def _mean_of_others(self) -> OPOBOptions:
        if self.leave_one_out and self.aggregation != "mean":
            raise ValueError("leave_one_out is a mean of the others; use aggregation = mean")
        return self


class OPOB(NormCreditMethod):
    """A_i = (R_i - b*) / std with the minimum-variance off-policy baseline b* of the rollout's group.

    Where the released code differs from the formula is a switch. ``weighting``: ``paper`` is the formula; ``exact`` uses W = |g_i|^2
    of the true contribution at unit advantage (truncation, masks and length mean included), which minimizes the second moment of this
    very update: our reading of what the formula is for; ``repo`` is the released code, which counts the weight twice. ``aggregation``:
    median and winsorized mean are options of the released code. ``scope = batch`` is our reading: the released one takes a baseline per
    data-parallel rank, of advantages; ours is one b over raw rewards of the whole update, W_i / std_i^2 being then what the second
    moment weighs by. ``norms`` other than exact are ours: what they cost and how far off they are is measured in docs/vcpo.md.

    Several updates per batch: each measures norms and b* of its own rollouts under the weights it starts from.
    """

    name = "opob"
    source = "VCPO (arXiv 2602.17616) section 3.3, Eq. 7; weighting exact, scope batch, norms: our reading; repo: released code"
    summary = "off-policy optimal baseline per group from per-sequence gradient norms"
    formula = "b* = sum W R / sum W, W = w^2 |grad log pi|^2"
    cost = "exact norms 0.05 to 0.4 of a step, estimated ones up to 0.1 (docs/vcpo.md); a first pass where a group or the batch is split"
    fails = (
        "On rewards in {0, 1} failures have by far the larger norms late in training, so b* drifts to 0 and only successes are imitated."
    )
    docs = "docs/vcpo.md"
    Options = OPOBOptions
    options: OPOBOptions
    reads_ratios = True
    min_group = 2

    def __init__(self, options: OPOBOptions) -> None:
        super().__init__(options)
        self.needs = Need.SCORE if options.norms == "length" else Need.NOTHING
        self.norms = None if options.norms == "length" else SequenceNorms(options.norms, whole_update=options.scope == "batch")
        # Of equal rewards b* is that reward, so the advantage is 0. A baseline of the whole batch may be another number; there the group's
        # own std of 0 silences it.
        self.silent = options.scope == "group" or options.std in ("group", "population")

    def check(self, chain: Composition) -> None:
        o = self.options
        objective = chain.objective_owner
        if not objective.linear:
            raise TrimtabError.field(
                "methods",
                [self.name, objective.name],
                f"opob needs an objective linear in the advantage and {objective.name} is not; use linear",
            )
        token = [m.name for m in chain.acting(WeighMethod) if m.level == "token"]
        if token and o.weighting != "exact":
            raise TrimtabError.field(
                "methods.opob.weighting", o.weighting, f"{token[0]} weighs tokens, so rollouts have no single weight; use exact or seq_tis"
            )
        if chain.setting.norms == "two_buffer" and self.norms is not None:
            if o.leave_one_out:
                raise TrimtabError.field(
                    "methods.opob.leave_one_out",
                    True,
                    "two_buffer cannot form a baseline that differs by rollout; use learner.norms = auto",
                )
            if o.norms != "exact":
                raise TrimtabError.field("methods.opob.norms", o.norms, "two_buffer measures exact norms; use learner.norms = auto")
        if o.weighting == "repo":
            chain.say("opob weighting repo counts the importance weight twice, as the released code does: for comparison only")

    def unit(self, view: View, w: Weighing) -> Tensor:
        """q_N whose gradient norm is measured: 1 on every action token (paper, repo), or keep * token weight * length factor (exact).

        The weight of the whole rollout is no part of it: log W adds it, so that a group whose weights all underflow keeps its b*.
        """
        if self.options.weighting == "exact":
            return view.weights(dataclasses.replace(w, log_scale_R=w.log_scale_R.new_zeros(w.log_scale_R.shape))) * view.scale_N
        return view.behavior_N.new_ones(view.behavior_N.shape)

    def credit(self, view: View, w: Weighing) -> Credit:
        o = self.options
        scale_R = inverse_std(view, o.std)
        norm2_R = view.norm2_R
        if o.norms == "length":
            norm2_R = view.sum_R(self.unit(view, w).double().square())  # token gradients orthogonal and of equal norm: sum q^2 = L
        assert norm2_R is not None
        log_W = F.baselines.opob_log_weight(o.weighting, view.log_ratio_R, w.log_scale_R, norm2_R)
        log_W = log_W.where(_contributes(view, w), log_W.new_tensor(-math.inf))
        scope_R, scopes = view.group_R, view.groups
        if o.scope == "batch":
            log_W = log_W + 2 * scale_R.log()
            scope_R, scopes = view.group_R.new_zeros(view.group_R.shape), 1
        best = F.baselines.optimal_baseline(view.reward_R, log_W, scope_R, scopes, o.aggregation)
        baseline_R = best.baseline_G[scope_R]
        if o.leave_one_out:
            baseline_R = F.baselines.leave_one_out(view.reward_R, log_W, scope_R, scopes)
        self._report(view, w, norm2_R, log_W, baseline_R, best.share_G[scope_R])
        return Credit((view.reward_R - baseline_R) * scale_R)

    def _report(self, view: View, w: Weighing, norm2_R: Tensor, log_W: Tensor, baseline_R: Tensor, share_R: Tensor) -> None:
        """Over mixed groups: b beside the mean, the share of one rollout in the weights, what b does to variance and gradient."""
        log_C = norm2_R.double().log()
        if self.options.weighting == "exact":
            log_C = log_C + 2.0 * w.log_scale_R
        else:  # the same on every token of a rollout, but for masked ones
            coefficient_N = (view.weights(w) * view.scale_N).double()
            log_C = log_C + (view.sum_R(coefficient_N.square()) / view.length_R.clamp(min=1)).log()
        c = F.baselines.against_mean(view.reward_R, baseline_R, log_W, log_C, view.group_R, view.groups)
        share_G = share_R.new_zeros(view.groups).index_copy(0, view.group_R, share_R)  # one number a group
        n = float(c.mixed_G.sum())
        for name, x_G in (
            ("baseline", c.baseline_G),
            ("group_mean", c.mean_G),
            ("max_share", share_G),
            ("variance_ratio", c.variance_ratio_G),
            ("gradient_change", c.change_G),
        ):
            view.metric(f"opob/{name}", float(x_G[c.mixed_G].sum()), n)


def _contributes(view: View, w: Weighing) -> Tensor:
    """bool _R: some token of the rollout is neither masked nor of weight 0; without one it moves nothing, whatever its norm."""
    kept_N = F.weights.token_weight(0.0 * view.score_R, view.rollout_N, w.weight_N, w.keep_N) != 0
    return (view.sum_R(kept_N.double()) > 0) & (w.log_scale_R > -math.inf)
