"""Options of the engines, told apart by ``kind``. Imports no torch; other kinds are plug-ins (:mod:`trimtab.plugins`)."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def _device(name: str) -> str:
    if not _DEVICE.fullmatch(name):
        raise ValueError('Trimtab computes on "cpu" and on NVIDIA GPUs ("cuda", or "cuda:1" for one of several); use cpu here')
    return name


Device = Annotated[str, AfterValidator(_device)]


class EngineOptions(BaseModel):
    """What the options of every engine have. ``made_by`` names ``module:function``, called with (policy, options, rescore)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    made_by: ClassVar[str]

    kind: str
    slots: int = Field(64, ge=1, description="responses decoded together by one worker; each holds keys and values in memory")

    def longest(self) -> int | None:
        """Tokens of prompt and response that the engine has room for; None: what the model has."""
        return None

    def speed(self, key: int) -> float:
        """Tokens a decode step that the rollout with this key is given, above 0 and at most 1."""
        return 1.0

    def check_timing(self) -> None:
        """TrimtabError where the time that a rollout keeps its slot does not tell how long its decode steps take."""


class TorchEngineOptions(EngineOptions):
    """The embedded engine: the real transformers model, continuous batching over ``slots`` rows of a KV cache."""

    made_by = "trimtab.engines.torch_engine:make"

    kind: Literal["torch"] = "torch"
    dtype: Literal["float32", "bfloat16", "float64"] = Field("float32", description="of the served weights: the same as learner.dtype")
    device: Device = Field("cpu", description="cpu, cuda, or cuda:N for one of several")
    cache_policy: Literal["recompute", "keep"] = Field(
        "recompute", description="at a weight swap: compute the keys of running rows again under the new weights, or keep the old ones"
    )
    max_context: int | None = Field(None, ge=2, description="longest prompt + response in tokens; default: the model's own")

    def longest(self) -> int | None:
        return self.max_context


class ScriptedEngineOptions(EngineOptions):
    """The deterministic engine of tests and soak runs: tokens come from a script, one a step, and weights change nothing."""

    made_by = "trimtab.engines.scripted:make"

    kind: Literal["scripted"] = "scripted"
    vocabulary: int = Field(16, ge=1, description="the built-in script draws ids uniformly below this number")
