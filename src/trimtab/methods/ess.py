"""The second half of VCPO: the effective sample size of the importance weights sets the step."""

from __future__ import annotations

import math
import statistics
from typing import Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Composition, MethodOptions, Refuse, State, StepMethod, StepResult, StepView
from trimtab.records import Decision, TrimtabError


class ESSOptions(MethodOptions):
    rule: Literal["sqrt", "linear"] = Field("sqrt", description="sqrt suits adaptive optimizers, linear SGD")
    reference: float | Literal["calibrate"] = Field(
        1.0, description="on-policy ESS/B; calibrate: the median of the first batches, run at lag 0"
    )
    calibration: int = Field(16, gt=0, description="batches to calibrate on; a single one has a coefficient of variation around 60 %")
    floor: float = Field(0.0, ge=0, le=1, description="smallest multiplier")
    dead_band: float = Field(0.0, ge=0, lt=1, description="full step while ESS/B >= (1 - dead_band) reference; below it the rule in full")


class ESSStep(StepMethod):
    """Multiply the learning rate by sqrt(min(1, rho / rho_ref)), rho = ESS/B over all rollouts of the update, weights not truncated.

    Truncation would hide exactly the tail that rho detects; computed in log space, so that the weights' scale does not matter and
    nothing overflows. A non-finite ratio refuses the step: min(1, NaN) would make it a full one. Published: the rule with a constant
    reference, 1.0 or 0.55 for multi-turn tools. Our reading: calibration, floor, dead band (a relative width within which noise of
    rho does not move the step; outside it the multiplier is what it would be without). Several updates per batch: each is scaled by
    its own rollouts under the weights it starts from; of a calibration batch only the first update is on-policy and teaches.
    """

    name = "ess"
    source = "VCPO (arXiv 2602.17616) section 3.2, Eq. 4 and 5; calibration, floor and dead band: our reading"
    summary = "learning rate scaled by the effective sample size"
    formula = "lr <- lr sqrt(min(1, rho / rho_ref)), rho = (sum w)^2 / (B sum w^2)"
    cost = "none: B numbers"
    fails = "A coherent gradient at rho near 1 passes unscaled; on long responses rho is tiny even on-policy, so the reference must be set."
    docs = "docs/vcpo.md"
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

    def check(self, chain: Composition) -> None:
        reference = self.options.reference
        if reference != "calibrate" and not 0 < reference <= 1:
            raise TrimtabError.field("methods.ess.reference", reference, 'ESS/B lies in (0, 1]; use 1.0, or "calibrate"')

    def step(self, s: StepView) -> float | Refuse:
        ess = F.ess.ess(s.log_ratio_R)
        if not (ess.finite and math.isfinite(ess.ratio)):
            return Refuse("non-finite importance ratio")
        if self._reference is None and s.lag_zero:
            # A later update of the batch is not on-policy any more: it is stepped in full, but teaches nothing.
            self._pending = ess.ratio if s.mini_step == 0 else None
            return 1.0
        reference = self._settle() if self._reference is None else self._reference
        if self.calibration:
            s.recorder.metric("ess/reference", reference)
        o = self.options
        m = F.ess.ess_multiplier(ess.ratio, rule=o.rule, reference=reference, floor=o.floor, dead_band=o.dead_band)
        s.recorder.metric("ess/multiplier", m)
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
