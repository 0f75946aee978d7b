"""Gradients of whole updates written from the formulas, by ordinary backwards of the plain model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from support.updates import (
    behavior,
    plain_logps,
)
from trimtab.records import Batch, Rollout


def standardized(batch: Batch) -> np.ndarray:
    """GRPO's advantage of every rollout."""
    out = []
    for g in batch.groups:
        r = g.scores
        out.append((r - r.mean()) / (r.std(ddof=1) + 1e-6) if r.std() > 1e-8 else 0 * r)
    return np.concatenate(out)


def sequence_weight(logp: Tensor, r: Rollout, cap: float = 8.0) -> Tensor:
    return (logp.detach().double() - behavior(r)).sum().exp().clamp(max=cap)


def reference(model: nn.Module, batch: Batch, loss_of: Callable[[Tensor, Rollout, float], Tensor], advantage: np.ndarray) -> list[Tensor]:
    """d/d theta of mean over rollouts of the mean over tokens of the loss, by one ordinary backward."""
    logps = plain_logps(model, batch.rollouts)
    losses = [loss_of(lp, r, a).mean() for lp, r, a in zip(logps, batch.rollouts, advantage.tolist(), strict=True)]
    return list(torch.autograd.grad(torch.stack(losses).mean(), list(model.parameters())))


def weighted(logp: Tensor, r: Rollout, a: float) -> Tensor:
    return -sequence_weight(logp, r).to(logp.dtype) * a * logp


def clipped(logp: Tensor, r: Rollout, a: float) -> Tensor:
    ratio = (logp - behavior(r).to(logp.dtype)).exp()
    return torch.maximum(-ratio * a, -ratio.clamp(0.8, 1.2) * a)


def optimal(model: nn.Module, batch: Batch, weighting: str) -> np.ndarray:
    """OPOB's advantage, with one backward a rollout."""
    raw, cut, norm2 = [], [], []
    for r in batch.rollouts:
        (logp,) = plain_logps(model, [r])
        w = float((logp.detach().double() - behavior(r)).sum().exp())
        unit = logp.sum() if weighting != "exact" else min(w, 8.0) * logp.mean() / len(batch.rollouts)
        norm2.append(float(sum(g.square().sum() for g in torch.autograd.grad(unit, list(model.parameters())))))
        raw.append(w)
        cut.append(min(w, 8.0))
    raw_R, cut_R, norm2_R = np.array(raw), np.array(cut), np.array(norm2)
    W = {"paper": raw_R**2 * norm2_R, "repo": raw_R**2 * cut_R**2 * norm2_R, "exact": norm2_R}[weighting]
    out, first = [], 0
    for g in batch.groups:
        r, w = g.scores, W[first : first + len(g.rollouts)]
        first += len(r)
        out.append((r - (w * r).sum() / w.sum()) / (r.std(ddof=1) + 1e-6) if r.std() > 1e-8 else 0 * r)
    return np.concatenate(out)
