"""A running median of a positive number per update, kept by methods that compare an update with the ones before it."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from pydantic import Field, model_validator

from trimtab.control.protocol import Composition, GradientMethod, MethodOptions, State


class RunningOptions(MethodOptions):
    window: int = Field(64, ge=1, description="applied updates whose median is the reference")
    warmup: int = Field(20, ge=1, description="applied updates seen before it acts")

    @model_validator(mode="after")
    def _reachable(self) -> RunningOptions:
        if self.warmup > self.window:
            raise ValueError(f"warmup = {self.warmup} must not exceed window = {self.window}")
        return self


def say_unclipped(method: GradientMethod, chain: Composition) -> None:
    """A clip by the run's past does nothing while it has none: say so where no absolute clip stands before it."""
    before = [m.name for m in chain.acting(GradientMethod)]
    if "norm_clip" not in before[: before.index(method.name)]:
        chain.say(f"{method.name} has no norm_clip before it: nothing clips its first updates, or what they teach it")


class RunningMedian:
    """Median of the last ``window`` committed values, None before ``warmup`` of them. A value is proposed while its update is under
    way and committed when it was applied: a skipped update teaches nothing. Zeros do not count."""

    def __init__(self, options: RunningOptions) -> None:
        self._warmup = options.warmup
        self._values: deque[float] = deque(maxlen=options.window)
        self._proposed = 0.0

    def median(self) -> float | None:
        return statistics.median(self._values) if len(self._values) >= self._warmup else None

    def propose(self, value: float) -> None:
        self._proposed = value

    def settle(self, applied: bool) -> None:
        if applied and self._proposed > 0.0:
            self._values.append(self._proposed)
        self._proposed = 0.0

    def state_dict(self) -> State:
        return {"window": list(self._values)}

    def load_state_dict(self, state: State) -> None:
        values = state["window"]
        assert isinstance(values, Sequence)
        self._values.clear()
        self._values.extend(float(str(x)) for x in values)
