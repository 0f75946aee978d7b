"""A method of your own in one file: a brake on the learning rate that follows how far the policy has drifted from its rollouts.

Everything a method can have is here once: typed options, a declaration of what it is, a control point, a decision that lands in
``decisions.jsonl``, a metric, a refusal, a check of the chain, and state that goes into the checkpoint. Put it beside this
``pyproject.toml``, ``pip install .``, and ``methods = ["vcpo", "drift_brake"]`` works like any built-in name:

    [build-system]
    requires = ["setuptools"]
    build-backend = "setuptools.build_meta"

    [project]
    name = "own-method"
    version = "0.1"

    [project.entry-points."trimtab.methods"]
    drift_brake = "own_method:DriftBrake"

    [tool.setuptools]
    py-modules = ["own_method"]

``docs/methods/own.md`` says which point to choose and what each one sees.
"""

from __future__ import annotations

import math

from pydantic import Field

from trimtab.control.protocol import Composition, MethodOptions, Refuse, State, Status, StepMethod, StepResult, StepView
from trimtab.records import Decision, TrimtabError


class DriftBrakeOptions(MethodOptions):
    tolerance: float = Field(1.0, gt=0, description="drift, in nats a rollout, up to which the step is a full one")
    memory: float = Field(0.9, ge=0, lt=1, description="share of the running mean kept at each step")
    limit: float = Field(math.inf, gt=0, description="drift of one update from which on it is refused")


class DriftBrake(StepMethod):
    """lr <- lr min(1, tolerance / drift), drift a running mean over applied updates of mean_i |log pi/mu of rollout i|.

    Unlike ESS scaling it reads how far the policy has moved and not how unequal the weights are, and it remembers. Several updates per
    batch: each is an update of its own.
    """

    name = "drift_brake"
    source = "an example"
    status = Status.CONTROL
    summary = "learning rate scaled down while rollouts are far from the policy"
    formula = "lr <- lr min(1, tolerance / ema(mean_i |sum_t log pi/mu|))"
    cost = "nothing"
    fails = "Long rollouts drift by their length alone, so a tolerance that suits short ones brakes them always."
    Options = DriftBrakeOptions
    options: DriftBrakeOptions
    reads_ratios = True

    def __init__(self, options: DriftBrakeOptions) -> None:
        super().__init__(options)
        self._drift: float | None = None
        self._next: float | None = None

    def check(self, chain: Composition) -> None:
        o = self.options
        if o.limit <= o.tolerance:
            raise TrimtabError.field("methods.drift_brake.limit", o.limit, f"choose it above tolerance = {o.tolerance}")

    def step(self, s: StepView) -> float | Refuse:
        now = float(s.log_ratio_R.abs().mean())
        if not now < self.options.limit:  # NaN too: a broken ratio must not become a step
            return Refuse(f"drift {now:.3g} is not below {self.options.limit:g}")
        kept = self.options.memory
        self._next = now if self._drift is None else kept * self._drift + (1 - kept) * now
        s.recorder.metric("drift_brake/drift", self._next)
        if self._next <= self.options.tolerance:
            return 1.0
        factor = self.options.tolerance / self._next
        why = f"drift {self._next:.3g} > {self.options.tolerance:g}"
        s.recorder.note(Decision(method=self.name, point="step", what="scaled", amount=factor, why=why))
        return factor

    def after(self, result: StepResult) -> None:
        """Another method may still have refused the step: what it saw counts only where it was applied."""
        if result.applied and self._next is not None:
            self._drift = self._next
        self._next = None

    def state_dict(self) -> State:
        return {"drift": self._drift}

    def load_state_dict(self, state: State) -> None:
        drift = state["drift"]
        assert drift is None or isinstance(drift, float)
        self._drift = drift
