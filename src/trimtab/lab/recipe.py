"""Options of a warm start: what determines an initial policy. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trimtab.lab.options import ExperimentOptions


class Phase(ExperimentOptions):
    """``steps`` batches of ``demonstrations`` whose steps go wrong with probability ``q``."""

    steps: int
    q: float
    lr: float
    demonstrations: int
    decay: bool  # linearly to a tenth, else constant


class WarmstartOptions(ExperimentOptions):
    """Everything that determines an initial policy (``lab.warmstart``). The defaults made the model that ships."""

    seed: int = 0
    task: Literal["chain_sum", "countdown", "number_sorting"] = "chain_sum"
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    intermediate: int = 160
    initializer_range: float = 0.1
    phases: tuple[Phase, ...] = Field(
        default=(
            Phase(steps=6000, q=0.02, lr=3e-3, demonstrations=64, decay=True),
            Phase(steps=2500, q=0.01, lr=2e-3, demonstrations=64, decay=True),
            Phase(steps=2500, q=0.005, lr=1e-3, demonstrations=64, decay=True),
            Phase(steps=3000, q=0.002, lr=1e-3, demonstrations=64, decay=True),
            Phase(steps=60, q=0.25, lr=5e-4, demonstrations=128, decay=False),
        )
    )
