"""DAPO's dynamic sampling: groups without signal are dropped on arrival."""

from __future__ import annotations

from pydantic import Field

from trimtab.control.protocol import AcceptMethod, GroupStats, MethodOptions, Reject, State, StepResult
from trimtab.records import equal_rewards


class DynamicSamplingOptions(MethodOptions):
    max_refill: int | None = Field(
        None, gt=0, description="constant groups dropped between two updates, after which they stay; none: no limit"
    )


class DynamicSampling(AcceptMethod):
    """A group whose members all have the same verifiable score is dropped on arrival; its place in the pool is refilled.

    DAPO generates again until the batch is full, up to 10 times the batch, then fails. Asynchronously there is no batch to wait for at
    arrival, so there are two budgets: ``max_refill`` lets constant groups in again (they cost no backward and give no gradient), and
    `runtime.max_fruitless` stops a run whose groups are all dropped. Dropped before selection, so PACE counts only what is left.
    Several updates per batch: nothing changes.
    """

    name = "dynamic_sampling"
    source = "DAPO (arXiv 2503.14476), section 3.2; budget: veRL's max_num_gen_batches, per update here"
    summary = "groups of constant score are dropped on arrival"
    formula = "keep group if not all scores are equal (up to rounding)"
    cost = "the generation of what is dropped"
    fails = "When most prompts are solved or hopeless, most generation is thrown away, and the batch drifts to the prompts in between."
    Options = DynamicSamplingOptions
    options: DynamicSamplingOptions
    min_group = 2

    def __init__(self, options: DynamicSamplingOptions) -> None:
        super().__init__(options)
        self._dropped = 0  # since the last update

    def accept(self, group: GroupStats) -> Reject | None:
        spent = self.options.max_refill is not None and self._dropped >= self.options.max_refill
        if spent or not equal_rewards(group.scores_R):
            return None
        self._dropped += 1
        return Reject("constant score", "all its members have the same score")

    def after(self, result: StepResult) -> None:
        self._dropped = 0

    def state_dict(self) -> State:
        return {"dropped": self._dropped}

    def load_state_dict(self, state: State) -> None:
        self._dropped = int(str(state["dropped"]))
