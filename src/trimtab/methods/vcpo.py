"""VCPO: Variance Controlled Policy Optimization (Huang et al. 2026, arXiv 2602.17616). The bundle ``vcpo`` is

    seq_tis(c=8), opob, linear, norm_clip(1.0), ess

(i) OPOB, the off-policy optimal baseline (section 3.3, Eq. 7). The estimator with a constant baseline b per group,
``G(b) = sum_i w_i (R_i - b) u_i`` with ``u_i = grad log pi(tau_i)``, has the second moment ``sum_i w_i^2 |u_i|^2 (R_i - b)^2``, minimal at

    b* = sum_i W_i R_i / sum_i W_i,    W_i = w_i^2 |u_i|^2,    A_i = (R_i - b*) / std of the group

(ii) ESS step scaling (section 3.2, Eq. 5): with rho = (sum w)^2 / (B sum w^2) over all rollouts of the step, weights not truncated,
the learning rate is multiplied by sqrt(min(1, rho / rho_ref)).

Where the released code differs from the formula is a switch: ``weighting``. ``paper`` (default) is the formula above; ``exact`` uses
W = |g_i|^2 of the true contribution at unit advantage (truncation, masks and length mean included), which minimizes the second
moment of this very update (our reading of what the formula means); ``repo`` is the released code, which counts the weight twice.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.methods.grpo import StdOptions, inverse_std
from trimtab.methods.protocol import Credit, Method, MethodOptions, Need, Point, Refuse, State, StepResult, StepView, View, Weighing
from trimtab.records import Decision, TrimtabError

if TYPE_CHECKING:
    from torch import Tensor

    from trimtab.methods.chain import Chain


class OPOBOptions(StdOptions):
    weighting: Literal["paper", "exact", "repo"] = "paper"


class OPOB(Method):
    """A_i = (R_i - b*) / std with the minimum-variance off-policy baseline b* of the rollout's group."""

    name = "opob"
    source = "VCPO (arXiv 2602.17616) section 3.3, Eq. 7; `exact`: our reading; `repo`: released code"
    summary = "off-policy optimal baseline per group from exact per-sequence gradient norms"
    formula = "b* = sum W R / sum W, W = w^2 |grad log pi|^2"
    Options = OPOBOptions
    options: OPOBOptions
    needs = Need.SEQ_NORMS
    reads_ratios = True
    owns = frozenset({Point.CREDIT})
    silent = True  # b* of equal scores is that score
    min_group = 2

    def check(self, chain: Chain) -> None:
        objective = chain.owner(Point.OBJECTIVE)
        if not objective.linear:
            raise TrimtabError.field(
                "methods",
                [self.name, objective.name],
                f"opob needs an objective linear in the advantage and {objective.name} is not; use linear",
            )
        token = [m.name for m in chain.at(Point.WEIGH) if m.level == "token"]
        if token and self.options.weighting != "exact":
            raise TrimtabError.field(
                "methods.opob.weighting",
                self.options.weighting,
                f"{token[0]} weighs tokens, so rollouts have no single weight; use exact or seq_tis",
            )
        if self.options.weighting == "repo":
            chain.said.append("opob weighting repo counts the importance weight twice, as the released code does: for comparison only")

    def unit(self, view: View, w: Weighing) -> Tensor:
        """q_N whose gradient norm is measured: 1 on every action token (paper, repo), or keep * weight * length factor (exact)."""
        ones = view.behavior_N.new_ones(view.behavior_N.shape)
        return view.weights(w) * view.scale_N if self.options.weighting == "exact" else ones

    def credit(self, view: View, w: Weighing) -> Credit:
        assert view.norm2_R is not None
        log_W = F.advantages.opob_log_weight(self.options.weighting, view.log_ratio_R, w.log_scale_R, view.norm2_R)
        best = F.advantages.optimal_baseline(view.reward_R, log_W, view.group_R, view.groups)
        self._report(view, best)
        return Credit((view.reward_R - best.baseline_G[view.group_R]) * inverse_std(view, self.options.std))

    def _report(self, view: View, best: F.advantages.OptimalBaseline) -> None:
        """b* beside the group mean over mixed groups; the share of one rollout in the weights; variance left against the mean."""
        std_R = F.advantages.grpo(view.reward_R, view.group_R, view.groups, "none").abs()
        mixed_G = view.reward_R.new_zeros(view.groups).index_add(0, view.group_R, std_R) > 0
        n = float(mixed_G.sum())
        mean_G = F.advantages.group_mean(view.reward_R, view.group_R, view.groups)
        view.metric("opob/baseline", float(best.baseline_G[mixed_G].sum()), n)
        view.metric("opob/group_mean", float(mean_G[mixed_G].sum()), n)
        view.metric("opob/max_share", float(best.share_G[mixed_G].sum()), n)
        view.metric("opob/variance_ratio", float(best.variance_ratio_G[mixed_G].sum()), n)


class ESSOptions(MethodOptions):
    rule: Literal["sqrt", "linear"] = Field("sqrt", description="sqrt suits adaptive optimizers, linear SGD")
    reference: float | Literal["calibrate"] = Field(
        1.0, description="on-policy ESS/B; calibrate: the median of the first batches, run at lag 0"
    )
    calibration: int = Field(16, gt=0, description="batches to calibrate on; a single one has a coefficient of variation around 60 %")
    floor: float = Field(0.0, ge=0, le=1, description="smallest multiplier")
    nan: Literal["refuse", "floor"] = Field("refuse", description="a non-finite ratio: refuse the step, or step with the floor")


class ESSStep(Method):
    """Multiply the learning rate by sqrt(min(1, ESS/B / reference)); ESS from unclipped sequence ratios in log space."""

    name = "ess"
    source = "VCPO (arXiv 2602.17616) section 3.2, Eq. 4 and 5; calibration, floor and NaN policy: our reading"
    summary = "learning rate scaled by the effective sample size"
    formula = "lr <- lr sqrt(min(1, rho / rho_ref)), rho = (sum w)^2 / (B sum w^2)"
    Options = ESSOptions
    options: ESSOptions
    reads_ratios = True

    def __init__(self, options: ESSOptions) -> None:
        super().__init__(options)
        calibrated = options.reference == "calibrate"
        self.calibration = options.calibration if calibrated else 0
        self._reference = None if calibrated else float(options.reference)
        self._seen: list[float] = []
        self._pending: float | None = None

    def check(self, chain: Chain) -> None:
        reference = self.options.reference
        if reference != "calibrate" and not 0 < reference <= 1:
            raise TrimtabError.field("methods.ess.reference", reference, 'ESS/B lies in (0, 1]; use 1.0, or "calibrate"')
        if self.options.nan == "floor" and self.options.floor == 0:
            raise TrimtabError.field("methods.ess.floor", 0.0, 'nan = "floor" steps with the floor, which must be above 0')

    def step(self, s: StepView) -> float | Refuse:
        ess = F.ess.ess(s.log_ratio_R)
        if not (ess.finite and math.isfinite(ess.ratio)):
            if self.options.nan == "refuse":
                return Refuse("non-finite importance ratio")
            return self.options.floor
        if self._reference is None and s.lag_zero:
            # A later update of the batch is not on-policy any more: it is stepped in full, but teaches nothing.
            self._pending = ess.ratio if s.mini_step == 0 else None
            return 1.0
        reference = self._settle() if self._reference is None else self._reference
        if self.calibration:
            s.recorder.metric("ess/reference", reference)
        m = F.ess.ess_multiplier(ess.ratio, rule=self.options.rule, reference=reference, floor=self.options.floor)
        if m < 1.0:
            why = f"ESS/B {ess.ratio:.3g}, reference {reference:.3g}"
            s.recorder.note(Decision(method=self.name, point="step", what="scaled", amount=m, why=why))
        return m

    def after(self, result: StepResult) -> None:
        if self._pending is not None and result.applied:
            self._seen.append(self._pending)
            if len(self._seen) >= self.calibration:
                self._settle()
        self._pending = None

    def _settle(self) -> float:
        """Calibration is over; skipped batches have taught nothing, and with none applied the reference is the strictest one."""
        self._reference = statistics.median(self._seen) if self._seen else 1.0
        return self._reference

    def state_dict(self) -> State:
        return {"reference": self._reference, "seen": list(self._seen)}

    def load_state_dict(self, state: State) -> None:
        reference, seen = state["reference"], state["seen"]
        assert isinstance(seen, list)
        assert reference is None or isinstance(reference, float)
        self._reference, self._seen = reference, [float(str(x)) for x in seen]
