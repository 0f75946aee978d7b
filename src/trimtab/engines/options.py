"""Options of the engines, told apart by ``kind``. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class TorchEngineOptions(BaseModel):
    """The embedded engine: the real transformers model, continuous batching over ``slots`` rows of a KV cache."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["torch"] = "torch"
    slots: int = Field(64, ge=1, description="rows decoded together")
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    cache_policy: Literal["recompute", "keep"] = Field(
        "recompute", description="at a weight swap: compute the keys of running rows again under the new weights, or keep the old ones"
    )
    max_context: int | None = Field(None, ge=2, description="longest prompt + response in tokens; None: the model's own")


class ScriptedEngineOptions(BaseModel):
    """The deterministic engine of tests and soak runs: tokens come from a script, one a step, and weights change nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["scripted"] = "scripted"
    slots: int = Field(64, ge=1)
    vocabulary: int = Field(16, ge=1, description="the built-in script draws ids uniformly below this number")


class LatencyEngineOptions(TorchEngineOptions):
    """The torch engine with a floor under each decode step, as if it ran on another device: for benchmarks and the laboratory."""

    kind: Literal["latency"] = "latency"  # type: ignore[assignment]
    step_s: float = Field(gt=0, description="a decode step takes at least this long")


EngineOptions = Annotated[TorchEngineOptions | LatencyEngineOptions | ScriptedEngineOptions, Field(discriminator="kind")]
