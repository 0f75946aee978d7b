"""PACE's prefix-forgetting score: how far a newer policy has moved on tokens that an older one sampled."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Phi = Literal["relu", "abs", "k1", "k3"]

Logps = npt.NDArray[np.floating]


def forgetting(behavior_N: Logps, rescored_N: Logps, phi: Phi) -> float:
    """Mean of ``phi(x)``, x = log mu - log q, over the tokens of the prefix where it is finite; inf where it is so nowhere.

    ``relu`` max(x, 0), ``abs`` |x|, ``k1`` x, ``k3`` exp(-x) - 1 + x: the k3 estimate of KL(mu || q).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        x = behavior_N.astype(np.float64) - rescored_N.astype(np.float64)
        match phi:
            case "relu":
                x = np.maximum(x, 0.0)
            case "abs":
                x = np.abs(x)
            case "k3":
                x = np.expm1(-x) + x
    finite = x[np.isfinite(x)]
    return float(finite.mean()) if len(finite) else np.inf
