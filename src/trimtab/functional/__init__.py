"""The pure tensor mathematics of the loop: ``from trimtab import functional as F``, then ``F.advantages.grpo(...)``.

Method files import this package and must not load torch, so a module is imported when its name is first used (PEP 562).
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab.functional import (
        advantages,
        baselines,
        buckets,
        clipping,
        distribution,
        divergence,
        ess,
        gradients,
        logprobs,
        objectives,
        ratios,
        reduce,
        traces,
        weights,
    )

__all__ = [
    "advantages",
    "baselines",
    "buckets",
    "clipping",
    "distribution",
    "divergence",
    "ess",
    "gradients",
    "logprobs",
    "objectives",
    "ratios",
    "reduce",
    "traces",
    "weights",
]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
