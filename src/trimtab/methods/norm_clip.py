"""Clipping the norm of the gradient."""

from __future__ import annotations

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import Gradient, GradientMethod, Keep, MethodOptions, Rank, Skip
from trimtab.records import Decision


class NormClipOptions(MethodOptions):
    max_norm: float = Field(1.0, gt=0, description="largest global norm that passes unchanged")


class NormClip(GradientMethod):
    """g <- g min(1, max_norm / ||g||), global norm over all parameters."""

    name = "norm_clip"
    source = "Pascanu, Mikolov & Bengio 2013 (arXiv 1211.5063)"
    summary = "absolute clip of the global gradient norm"
    formula = "g <- g min(1, c / ||g||)"
    cost = "one norm of the gradient, which is computed anyway"
    fails = "A constant that suits the start clips everything or nothing later; it bounds the gradient's size and not its direction."
    Options = NormClipOptions
    options: NormClipOptions
    rank = Rank.CLIP

    def gradient(self, g: Gradient) -> Keep | Skip:
        norm = g.norm()
        factor = F.gradients.clip_factor(norm, self.options.max_norm)
        if factor < 1.0:
            g.scale(factor)
            g.recorder.note(
                Decision(
                    method=self.name, point="gradient", what="clipped", amount=factor, why=f"norm {norm:.3g} > {self.options.max_norm:g}"
                )
            )
        return Keep()
