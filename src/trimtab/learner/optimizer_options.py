"""Options of an optimizer and its schedule. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AdamWOptions(_Options):
    """AdamW (Loshchilov & Hutter 2019); decay applies to every parameter, as in the released recipes."""

    lr: float = Field(3e-4, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.1, ge=0)


class ConstantOptions(_Options):
    """``warmup`` linear steps, then constant. Steps are *applied* optimizer steps: a skipped step does not advance it."""

    kind: Literal["constant"] = "constant"
    warmup: int = Field(0, ge=0)


class WSDOptions(_Options):
    """Warmup-stable-decay: linear up over ``warmup``, constant for ``stable``, linear down to ``floor`` over ``decay`` steps (0: never)."""

    kind: Literal["wsd"]
    warmup: int = Field(0, ge=0)
    stable: int = Field(ge=0)
    decay: int = Field(ge=0)
    floor: float = Field(0.0, ge=0, le=1)


class CosineOptions(_Options):
    """Linear up over ``warmup``, then down half a cosine to ``floor`` over ``decay`` steps (Loshchilov & Hutter 2017), constant from there.

    Counted in applied steps: for a run to its end, ``decay`` = learner.batches x updates_per_batch x epochs - ``warmup``.
    """

    kind: Literal["cosine"]
    warmup: int = Field(0, ge=0)
    decay: int = Field(ge=1)
    floor: float = Field(0.0, ge=0, le=1)


Schedule = Annotated[ConstantOptions | WSDOptions | CosineOptions, Field(discriminator="kind")]
