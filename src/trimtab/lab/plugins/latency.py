"""Options of the engine that is slowed down: ``engine.kind = "latency"``. Imports no torch."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal, Self

from pydantic import Field, model_validator

from trimtab import keyed
from trimtab.engines.options import TorchEngineOptions
from trimtab.records import TrimtabError


class LatencyEngineOptions(TorchEngineOptions):
    """The torch engine, slowed down as if it ran on another device: for benchmarks and the laboratory. Sleeping costs no CPU.

    ``slowness``: long-tailed lengths without long responses. A rollout takes a token only every so many decode steps, a number drawn
    from a log-normal with median 1 and this sigma, at least 1. ``rollout_s``, ``rollout_p99_s``: long-tailed latency. A rollout keeps
    its slot until its drawn log-normal time has passed, all of its tokens sampled at the beginning. What is drawn depends on the
    rollout's key alone.
    """

    made_by = "trimtab.lab.plugins.latency_engine:make"

    kind: Literal["latency"] = "latency"  # type: ignore[assignment]
    step_s: float = Field(0.0, ge=0, description="a decode step takes at least this long")
    slowness: float = Field(0.0, ge=0, description="sigma of the log-normal number of decode steps a token; 0: one step")
    rollout_s: float | None = Field(
        None, gt=0, description="median of the log-normal seconds a rollout takes at least; default: no such floor"
    )
    rollout_p99_s: float | None = Field(None, gt=0, description="their 99th percentile; default: all take the median")

    @model_validator(mode="after")
    def _quantiles(self) -> Self:
        if self.rollout_p99_s is not None and (self.rollout_s is None or self.rollout_p99_s < self.rollout_s):
            raise TrimtabError.field("engine.rollout_p99_s", self.rollout_p99_s, "give the median as rollout_s, and no less than it here")
        return self

    def speed(self, key: int) -> float:
        return min(1.0, math.exp(-self.slowness * _normal(key, 0))) if self.slowness else 1.0

    def check_timing(self) -> None:
        if self.rollout_s is not None:
            raise TrimtabError.field("engine.rollout_s", self.rollout_s, "rollouts that are held back do not tell how long a step takes")

    def hold(self, key: int) -> float:
        """Seconds that the rollout keeps its slot at least."""
        if self.rollout_s is None:
            return 0.0
        sigma = math.log((self.rollout_p99_s or self.rollout_s) / self.rollout_s) / NormalDist().inv_cdf(0.99)
        return self.rollout_s * math.exp(sigma * _normal(key, 1))


def _normal(key: int, which: int) -> float:
    """Standard normal, one of several that belong to a rollout."""
    u = float(keyed.uniform(keyed.fold(key, keyed.ENGINE, which), 0, 0))
    return NormalDist().inv_cdf(min(max(u, 2.0**-53), 1 - 2.0**-53))
