"""Options of an optimizer and its schedule. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AdamWOptions(_Options):
    """AdamW (Loshchilov & Hutter 2019); decay applies to every parameter, as in the released recipes."""

    lr: float = Field(3e-4, gt=0, description="learning rate after the warmup, before what step methods do to it")
    betas: tuple[float, float] = Field((0.9, 0.999), description="decay of the running mean of gradients, and of their squares")
    eps: float = Field(1e-8, gt=0, description="added to the root of the mean square, so that nothing is divided by 0")
    weight_decay: float = Field(0.1, ge=0, description="share of a weight that a step takes away, times the learning rate")


class ConstantOptions(_Options):
    """``warmup`` linear steps, then constant. Steps are *applied* optimizer steps: a skipped step does not advance it."""

    kind: Literal["constant"] = "constant"
    warmup: int = Field(0, ge=0, description="applied steps over which the rate rises from 0")


class WSDOptions(_Options):
    """Warmup-stable-decay: linear up over ``warmup``, constant for ``stable``, linear down to ``floor`` over ``decay`` steps (0: never)."""

    kind: Literal["wsd"]
    warmup: int = Field(0, ge=0, description="applied steps over which the rate rises from 0")
    stable: int = Field(ge=0, description="applied steps at the full rate")
    decay: int = Field(ge=0, description="applied steps over which it falls; 0: it never does")
    floor: float = Field(0.0, ge=0, le=1, description="where it ends, as a share of the full rate")


class CosineOptions(_Options):
    """Linear up over ``warmup``, then down half a cosine to ``floor`` over ``decay`` steps (Loshchilov & Hutter 2017), constant from there.

    Counted in applied steps: for a run to its end, ``decay`` = learner.batches x updates_per_batch x epochs - ``warmup``.
    """

    kind: Literal["cosine"]
    warmup: int = Field(0, ge=0, description="applied steps over which the rate rises from 0")
    decay: int = Field(ge=1, description="applied steps over which it falls")
    floor: float = Field(0.0, ge=0, le=1, description="where it ends, as a share of the full rate")


Schedule = Annotated[ConstantOptions | WSDOptions | CosineOptions, Field(discriminator="kind")]
