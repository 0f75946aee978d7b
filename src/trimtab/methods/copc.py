"""COPC: Coupled Off-Policy Correction (Hu et al. 2026, arXiv 2610.09597), for an actor and a learned critic. The bundle ``copc`` is

    copc_mask, copc_credit, linear, norm_clip(1.0)

Published (abstract): correcting the policy's token ratios alone leaves advantages that inherit stale *continuations*; the two errors
multiply; so mask token ratios on the policy side and weight TD residuals by two-sided clipped ratios in returns and advantages. Bounds,
the shape of the mask, whether weights multiply along the trace and whether an action's own residual is weighted are not known to us:

    r_t = pi_current / mu       recomputed at every update    w_t = r_t if 1 - eps_low < r_t < 1 + eps_high else 0
    rho_t = pi_proximal / mu    frozen for the batch          kappa_t = clip(rho_t, low, high)
    G_t = kappa_t delta_t + gamma lam c_t G_{t+1},   A_t = delta_t + gamma lam G_{t+1},   R_t = V_t + G_t

is our reading, with the other readings as switches. kappa = 1 is GAE to the bit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Composition, Credit, CreditMethod, MethodOptions, Need, Ratio, Status, View, Weighing, WeighMethod
from trimtab.methods.gae import TraceOptions, actor_lambda, values
from trimtab.records import Decision, TrimtabError

if TYPE_CHECKING:
    from torch import Tensor


class CopcMaskOptions(MethodOptions):
    eps_low: float | None = Field(0.5, gt=0, le=1, description="keep r > 1 - eps_low; none: no lower bound")
    eps_high: float | None = Field(1.0, gt=0, description="keep r < 1 + eps_high; none: no upper bound")
    surrogate: Literal["linear", "ppo"] = Field(
        "linear", description="linear: kept tokens weigh r; ppo: kept tokens keep the objective's own clipped ratio and weigh 1"
    )


class CopcMask(WeighMethod):
    """w_t = r_t where 1 - eps_low < r_t < 1 + eps_high, else 0: strict, whatever the advantage's sign, detached.

    Every update of a batch masks anew. Masked tokens stay in the denominator, so a tighter mask is a smaller step. No published
    bounds: 0.5 < r < 2 is ours; public token masks of this shape use (0.7, 6) (GLM-5, SAO re-implementations).
    """

    name = "copc_mask"
    source = "COPC (arXiv 2610.09597), abstract; shape of the mask after GLM-5 (arXiv 2602.15763), Eq. 3 to 5; bounds ours"
    status = Status.OUR_READING
    summary = "strict two-sided mask on the token ratio, kept tokens weighted by it"
    formula = "w_t = r_t if 1 - eps_low < r_t < 1 + eps_high else 0"
    cost = "nothing"
    fails = "It bounds the gradient, not the drift: far off-policy it masks the very tokens that would pull the policy back."
    Options = CopcMaskOptions
    options: CopcMaskOptions
    corrects = frozenset({Ratio.CURRENT_BEHAVIOR})
    level: Literal["token", "sequence"] | None = "token"

    def __init__(self, options: CopcMaskOptions) -> None:
        super().__init__(options)
        self.masks_only = options.surrogate == "ppo"

    def check(self, chain: Composition) -> None:
        if not self.masks_only:
            return
        objective = chain.objective_owner
        if objective.linear:
            raise TrimtabError.field(
                "methods.copc_mask.surrogate", "ppo", f"{objective.name} has no ratio of its own; use ppo_decoupled, or surrogate = linear"
            )
        credit = [m for m in chain.methods if isinstance(m, CopcCredit) and m.weighs]
        if any(m.options.own == "exclude" for m in credit):
            raise TrimtabError.field(
                "methods.copc_mask.surrogate", "ppo", 'no policy weight supplies the own step\'s ratio; give copc_credit own = "include"'
            )
        if credit and Ratio.CURRENT_BEHAVIOR in objective.corrects:
            chain.say(
                f"{objective.name} starts its ratio at the behavior policy, so own = include counts the own step's ratio twice; "
                "ppo_decoupled starts at the proximal one"
            )

    def weigh(self, view: View) -> Weighing:
        o, log_ratio_N = self.options, view.log_ratio_N
        low, high = 0.0 if o.eps_low is None else 1 - o.eps_low, math.inf if o.eps_high is None else 1 + o.eps_high
        keep_N = F.weights.keep_within(log_ratio_N, low, high, strict=True)
        ratio_N = F.ratios.exp_clamped(log_ratio_N)
        self._report(view, log_ratio_N, ratio_N, keep_N)
        nothing_R = view.score_R.new_zeros(view.score_R.shape[0]).double()
        return Weighing(nothing_R, weight_N=None if self.masks_only else ratio_N, keep_N=keep_N)

    def _report(self, view: View, log_ratio_N: Tensor, ratio_N: Tensor, keep_N: Tensor) -> None:
        """In all and by age. ESS of w over the tokens is weight^2 / weight_squared: means, which add up over ranks.

        The proxies compare the kept weight with w* = pi_current / mu of this very update.
        """
        low_N, high_N = ~keep_N & (log_ratio_N < 0), ~keep_N & (log_ratio_N >= 0)
        w_N = F.ratios.masked(ratio_N.double(), keep_N)
        columns = [low_N, high_N, F.divergence.k3(log_ratio_N), ratio_N, w_N, w_N * w_N]
        for age, (n, low, high, k3, mass, w, w2) in F.buckets.sums_by_age(columns, view.age_N).items():
            where = f"/age_{age}" if age else ""
            view.metric(f"copc/masked_low{where}", low, n)
            view.metric(f"copc/masked_high{where}", high, n)
            view.metric(f"copc/k3{where}", k3, n)
            view.metric(f"copc/weight{where}", w, n)
            view.metric(f"copc/weight_squared{where}", w2, n)
            view.metric(f"copc/proxy_weight_gap{where}", mass - w, n)  # mean |w - w*|
            view.metric(f"copc/proxy_mass_removed{where}", mass - w, mass)


class CopcCreditOptions(TraceOptions):
    low: float = Field(0.5, ge=0, le=1, description="smallest weight kappa of a TD residual")
    high: float = Field(2.0, ge=1, description="largest weight kappa of a TD residual")
    own: Literal["exclude", "include"] = Field(
        "exclude", description="exclude: the policy weight supplies the own step's ratio; include: kappa weighs the own residual too"
    )
    c_bar: float | None = Field(None, gt=0, description="trace ratios min(c_bar, rho) multiply along the trace; none: residuals only")


class CopcCredit(CreditMethod):
    """G_t = kappa_t delta_t + gamma lam c_t G_{t+1}; A_t = delta_t + gamma lam G_{t+1} (``own`` exclude) or G_t (include); R_t = V_t + G_t.

    rho is frozen for the batch: mini-batches and epochs share one credit, while the mask follows the policy. ``own``: with the ratio
    already in the policy weight, weighing the own residual again gives about r^2, hence ``exclude``; ``include`` is the literal
    reading of "weighting of TD residuals". ``c_bar`` none: the abstract speaks of residuals, and a product over thousands of tokens
    explodes or cuts all long-range credit. ``c_bar = 1`` is the trace of V-trace; then keep ``high`` below about 1.01.
    """

    name = "copc_credit"
    source = "COPC (arXiv 2610.09597), abstract: two-sided clipped-ratio weighting of TD residuals; bounds, own and trace: our reading"
    status = Status.OUR_READING
    summary = "advantages and returns from TD residuals weighted by clipped importance ratios"
    formula = "G_t = clip(rho_t, low, high) delta_t + gamma lam c_t G_{t+1}, A_t = delta_t + gamma lam G_{t+1}"
    cost = "a critic, as gae; log-probs at the start of the batch where it has several updates"
    fails = (
        "A critic that explains little leaves one large residual, at the last token, and the correction shrinks to that token's ratio; "
        "without the mask, kappa up to 2 makes large gradients larger."
    )
    Options = CopcCreditOptions
    options: CopcCreditOptions
    needs = Need.VALUES | Need.PROXIMAL
    reads_ratios = True
    cadence: Literal["batch", "update"] = "batch"

    @property
    def weighs(self) -> bool:
        """Can kappa differ from 1?"""
        return (self.options.low, self.options.high) != (1.0, 1.0)

    def check(self, chain: Composition) -> None:
        if self.options.c_bar is not None and self.options.high > 1.01:
            chain.say(
                f"copc_credit multiplies ratios along the trace (c_bar = {self.options.c_bar:g}) and lets residuals weigh up to "
                f"{self.options.high:g}: returns contract for high <= 1.01 only"
            )

    def credit(self, view: View, w: Weighing) -> Credit:
        o, log_ratio_N = self.options, view.proximal - view.behavior_N
        traces = F.traces.copc(
            view.token_reward_N,
            values(view),
            log_ratio_N,
            view.length_R,
            boot_R=view.boot_R,
            gamma=o.gamma,
            lam_actor=actor_lambda(o, view),
            lam_critic=o.lam_critic,
            low=o.low,
            high=o.high,
            own=o.own,
            c_bar=o.c_bar,
        )
        self._report(view, log_ratio_N, traces)
        advantage_N = F.traces.whiten(traces.advantage_N) if o.whiten else traces.advantage_N
        return Credit(advantage_N=advantage_N, return_N=traces.return_N)

    def _report(self, view: View, log_ratio_N: Tensor, traces: F.traces.Corrected) -> None:
        """In all and by age. The proxy compares A with the advantage under the full product of ratios, where that is finite."""
        o, kappa_N, r_N = self.options, traces.kappa_N, traces.return_N
        rho_N, e_N = F.ratios.exp_clamped(log_ratio_N.double()), r_N - values(view)
        gap_N = (traces.advantage_N - traces.full_N).abs()
        finite_N = gap_N.isfinite()
        columns = [rho_N < o.low, rho_N > o.high, (kappa_N - 1).abs(), finite_N, F.ratios.masked(gap_N, finite_N), r_N, r_N**2, e_N, e_N**2]
        for age, (n, low, high, distance, finite, gap, *moments) in F.buckets.sums_by_age(columns, view.age_N).items():
            where = f"/age_{age}" if age else ""
            view.metric(f"copc/kappa_low{where}", low, n)
            view.metric(f"copc/kappa_high{where}", high, n)
            view.metric(f"copc/kappa_distance{where}", distance, n)  # mean |kappa - 1|
            if not age and distance:
                why = f"{low / n:.1%} of the TD residuals below {o.low:g}, {high / n:.1%} above {o.high:g}"
                view.note(Decision(method=self.name, point="credit", what="weighted residuals", amount=distance / n, why=why))
            view.metric(f"copc/proxy_trace_gap{where}", gap, finite)
            view.metric(f"copc/proxy_trace_overflow{where}", n - finite, n)
            explained = F.traces.explained_variance(n, *moments)
            if explained is not None:
                view.metric(f"copc/explained_variance{where}", explained * n, n)
