"""V-trace: returns under truncated importance ratios. The bundle ``impala`` is

vtrace, tok_tis(c=1), linear, norm_clip(1.0)
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Credit, CreditMethod, MethodOptions, Need, View, Weighing
from trimtab.methods.gae import values


class VTraceOptions(MethodOptions):
    gamma: float = Field(1.0, gt=0, le=1, description="discount per action token")
    lam: float = Field(1.0, ge=0, le=1, description="factor on the trace ratios c")
    rho_bar: float = Field(1.0, gt=0, description="cap on a residual's ratio: whose value function it is that one learns")
    c_bar: float = Field(1.0, gt=0, description="cap on the trace's ratio: how fast it learns it")
    whiten: bool = Field(False, description="advantages get mean 0 and variance 1 over the action tokens of the batch")


class VTrace(CreditMethod):
    """v_t = V_t + rho_t delta_t + gamma c_t (v_{t+1} - V_{t+1}); A_t = r_t + gamma v_{t+1} - V_t. Published defaults: both caps 1.

    Ratios are proximal/behavior, frozen for the batch. The published gradient is rho_t A_t grad log pi; its rho_t comes from the weigh
    method (``tok_tis`` with c = rho_bar), which follows the policy through mini-batches and epochs.
    """

    name = "vtrace"
    source = "IMPALA (Espeholt et al. 2018, arXiv 1802.01561), section 4.1"
    summary = "V-trace returns and advantages from a learned critic"
    formula = "v_t = V_t + min(rho_bar, r_t) delta_t + gamma lam min(c_bar, r_t) (v_{t+1} - V_{t+1})"
    cost = "a critic, as gae; log-probs at the start of the batch where it has several updates"
    fails = "With caps at 1 the product of ratios cuts credit within a few dozen stale tokens: earlier ones learn from the critic alone."
    Options = VTraceOptions
    options: VTraceOptions
    needs = Need.VALUES | Need.PROXIMAL
    reads_ratios = True
    cadence: Literal["batch", "update"] = "batch"

    def credit(self, view: View, w: Weighing) -> Credit:
        o = self.options
        traces = F.traces.vtrace(
            view.token_reward_N,
            values(view),
            view.proximal - view.behavior_N,
            view.length_R,
            boot_R=view.boot_R,
            gamma=o.gamma,
            lam=o.lam,
            rho_bar=o.rho_bar,
            c_bar=o.c_bar,
        )
        advantage_N = F.traces.whiten(traces.advantage_N) if o.whiten else traces.advantage_N
        return Credit(advantage_N=advantage_N, return_N=traces.return_N)
