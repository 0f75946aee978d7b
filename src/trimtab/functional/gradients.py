"""Scalars of a finished gradient: global norm, clip factor, cosine."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

BF16 = torch.bfloat16  # for methods, which do not import torch


def global_norm(parts: Iterable[Tensor]) -> float:
    """||g|| = sqrt(sum over all tensors of sum x^2), accumulated in float64; 0 for no tensors, non-finite where any entry is."""
    squares = [torch.linalg.vector_norm(g, dtype=torch.float64).square() for g in parts]
    return math.sqrt(float(torch.stack(squares).sum())) if squares else 0.0


def clip_factor(norm: float, max_norm: float) -> float:
    """min(1, max_norm / norm): the factor that brings a gradient of this norm to at most ``max_norm``; 1 for norm 0.

    Raises:
        ValueError: the norm is not finite. A factor would be 0 or NaN: refuse the step instead.
    """
    if not math.isfinite(norm):
        raise ValueError(f"clip_factor: norm = {norm}; refuse the step where the gradient is not finite")
    return min(1.0, max_norm / norm) if norm > 0.0 else 1.0


def cosine(dot: float, norm_a: float, norm_b: float) -> float:
    """dot / (||a|| ||b||) in [-1, 1]; 0 where either norm is 0, NaN where anything is."""
    if norm_a == 0.0 or norm_b == 0.0:
        return 0.0
    value = dot / norm_a / norm_b  # not over the product, which can underflow
    return value if math.isnan(value) else min(1.0, max(-1.0, value))
