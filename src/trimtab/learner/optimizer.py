"""The optimizer of one set of parameters, with its schedule; a step is applied whole or not at all."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from trimtab.learner.options import AdamWOptions, ConstantOptions, CosineOptions, Schedule


def schedule_factor(options: Schedule, applied: int) -> float:
    """Factor on the learning rate for the step after ``applied`` applied ones."""
    if applied < options.warmup:
        return (applied + 1) / options.warmup
    if isinstance(options, ConstantOptions):
        return 1.0
    if isinstance(options, CosineOptions):
        share = min(1.0, (applied - options.warmup + 1) / options.decay)
        return options.floor + (1.0 - options.floor) * (1.0 + math.cos(math.pi * share)) / 2.0
    past = applied - options.warmup - options.stable
    if past < 0 or options.decay == 0:
        return 1.0
    if past >= options.decay:
        return options.floor
    return 1.0 - (1.0 - options.floor) * (past + 1) / options.decay


class ScheduledAdamW:
    """AdamW whose step takes a multiplier in (0, 1] on the scheduled learning rate (decoupled decay scales with it)."""

    def __init__(self, parameters: Iterable[nn.Parameter], options: AdamWOptions, schedule: Schedule) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self._options, self._schedule = options, schedule
        self.applied = 0
        self._adamw = torch.optim.AdamW(
            self.parameters, lr=options.lr, betas=options.betas, eps=options.eps, weight_decay=options.weight_decay, fused=True
        )

    @property
    def lr(self) -> float:
        """The scheduled learning rate of the next step."""
        return self._options.lr * schedule_factor(self._schedule, self.applied)

    def zero_grad(self) -> None:
        self._adamw.zero_grad(set_to_none=True)

    def step(self, multiplier: float) -> float:
        """Apply one step with ``lr * multiplier``; returns the learning rate used."""
        if not 0.0 < multiplier <= 1.0:
            raise ValueError(f"step multiplier {multiplier} is outside (0, 1]")
        lr = self.lr * multiplier
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.step()
        self.applied += 1
        return lr

    def update_norm(self) -> float:
        """Norm of the step AdamW would take now at multiplier 1, weight decay left out. Reads state, moves nothing."""
        beta1, beta2 = self._options.betas
        total = 0.0
        for p in self.parameters:
            if p.grad is None:
                continue
            state = self._adamw.state.get(p, {})
            t = int(state["step"]) + 1 if state else 1
            m: Tensor = (state["exp_avg"] if state else torch.zeros_like(p)) * beta1 + p.grad * (1 - beta1)
            v: Tensor = (state["exp_avg_sq"] if state else torch.zeros_like(p)) * beta2 + p.grad**2 * (1 - beta2)
            update = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + self._options.eps)
            total += float(update.double().pow(2).sum())
        return self.lr * total**0.5

    def state_dict(self) -> dict[str, object]:
        """Moments by parameter order, and the count of applied steps."""
        moments = []
        for p in self.parameters:
            state = self._adamw.state.get(p)
            moments.append({} if not state else {k: state[k].clone() for k in ("step", "exp_avg", "exp_avg_sq")})
        return {"applied": self.applied, "moments": moments}

    def load_state_dict(self, state: dict[str, object]) -> None:
        moments = state["moments"]
        if not isinstance(moments, list) or len(moments) != len(self.parameters):
            raise ValueError("optimizer state has another number of parameters than the model")
        self.applied = int(str(state["applied"]))
        for p, kept in zip(self.parameters, moments, strict=True):
            self._adamw.state[p] = {k: v.to(p.device, copy=True) for k, v in kept.items()}
