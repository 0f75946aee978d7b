"""Capping the size of the optimizer's step at a multiple of its own running median."""

from __future__ import annotations

from pydantic import Field

from trimtab.control.protocol import Refuse, State, Status, StepMethod, StepResult, StepView
from trimtab.control.running import RunningMedian, RunningOptions
from trimtab.records import Decision


class UpdateCapOptions(RunningOptions):
    cap: float = Field(2.0, gt=1, description="largest step as a multiple of the running median")


class UpdateCap(StepMethod):
    """lr <- lr min(1, cap m / u): u is the norm of the step that AdamW would take now at multiplier 1, m the median of its last values.

    The window stores the capped value. It acts on the step, not on the momentum: a spike that it shortens is still repeated by the
    following steps, which is why it did not hold where a clip of the gradient did (docs/steady.md). Several updates per batch: every
    update counts.
    """

    name = "update_cap"
    source = "our reading: the control beside median_clip; StableAdamW (arXiv 2304.13013) caps by RMS per tensor instead"
    status = Status.CONTROL
    summary = "step shortened to a multiple of the update norm's running median"
    formula = "lr <- lr min(1, cap median(u) / u), u = ||AdamW step||"
    cost = "one read of gradient and moments (the step is computed twice)"
    fails = "It leaves a spike in the momentum, so the steps after it still go there."
    Options = UpdateCapOptions
    options: UpdateCapOptions

    def __init__(self, options: UpdateCapOptions) -> None:
        super().__init__(options)
        self._updates = RunningMedian(options)

    def step(self, s: StepView) -> float | Refuse:
        norm, median = s.update_norm(), self._updates.median()
        multiplier = min(1.0, self.options.cap * median / norm) if median is not None and norm > 0.0 else 1.0
        s.recorder.metric("update_cap/norm", norm)
        if multiplier < 1.0:
            why = f"update {norm:.3g} > {self.options.cap:g} x median {median:.3g}"
            s.recorder.note(Decision(method=self.name, point="step", what="scaled", amount=multiplier, why=why))
        self._updates.propose(multiplier * norm)
        return multiplier

    def after(self, result: StepResult) -> None:
        self._updates.settle(result.applied)

    def state_dict(self) -> State:
        return self._updates.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._updates.load_state_dict(state)
