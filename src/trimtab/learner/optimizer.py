"""The optimizer of one set of parameters, with its schedule; a step is applied whole or not at all.

A parameter narrower than float32 has a float32 master. Gradients are added up, clipped and stepped on the master, the moments are
float32 too, and the parameter is the master rounded to its dtype: bf16 holds 8 bits, so a step of less than 1/512 of a weight would
be lost in it, every time (Micikevicius et al. 2018, arXiv 1710.03740). Wide parameters are their own masters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trimtab.learner.moved import Sample
from trimtab.learner.optimizer_options import AdamWOptions, ConstantOptions, CosineOptions, Schedule


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


@dataclass(frozen=True, slots=True)
class Stepped:
    """One applied step: its learning rate, and the shares of weights whose bits it changed (``moved.Sample``)."""

    lr: float
    moved: float  # of the parameters, which are what is published
    moved_masters: float


class ScheduledAdamW:
    """AdamW whose step takes a multiplier in (0, 1] on the scheduled learning rate (decoupled decay scales with it).

    ``parameters`` are the model's; ``masters``, in the same order, are what is stepped: of a narrow parameter a float32 copy, of
    any other the parameter itself. After every backward :meth:`collect` takes the gradients over to the masters.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], options: AdamWOptions, schedule: Schedule) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self.masters = [nn.Parameter(p.detach().float()) if p.element_size() < 4 else p for p in self.parameters]
        self._narrow = [(p, m) for p, m in zip(self.parameters, self.masters, strict=True) if m is not p]
        self._options, self._schedule = options, schedule
        self.applied = 0
        self._adamw = torch.optim.AdamW(
            self.masters, lr=options.lr, betas=options.betas, eps=options.eps, weight_decay=options.weight_decay, fused=True
        )
        self._sample = Sample(self.masters)
        self._published = Sample(self.parameters) if self._narrow else None

    @property
    def lr(self) -> float:
        """The scheduled learning rate of the next step."""
        return self._options.lr * schedule_factor(self._schedule, self.applied)

    def zero_grad(self) -> None:
        self._adamw.zero_grad(set_to_none=True)
        for p, _ in self._narrow:
            p.grad = None

    def collect(self) -> None:
        """Add the gradients of narrow parameters to those of their masters, in float32, and clear them."""
        for p, master in self._narrow:
            if p.grad is not None:
                master.grad = p.grad.float() if master.grad is None else master.grad.add_(p.grad)
                p.grad = None

    def step(self, multiplier: float) -> Stepped:
        """Apply one step with ``lr * multiplier``."""
        if not 0.0 < multiplier <= 1.0:
            raise ValueError(f"step multiplier {multiplier} is outside (0, 1]")
        lr = self.lr * multiplier
        for group in self._adamw.param_groups:
            group["lr"] = lr
        before = self._sample.take()
        published = None if self._published is None else self._published.take()
        self._adamw.step()
        self._round()
        self.applied += 1
        moved = self._sample.changed(before)
        if self._published is None or published is None:
            return Stepped(lr, moved, moved)
        return Stepped(lr, self._published.changed(published), moved)

    @torch.no_grad()
    def _round(self) -> None:
        for p, master in self._narrow:
            p.copy_(master)

    def update_norm(self) -> float:
        """Norm of the step AdamW would take now at multiplier 1, weight decay left out. Reads state, moves nothing."""
        beta1, beta2 = self._options.betas
        total = 0.0
        for p in self.masters:
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
        """Moments by parameter order, the count of applied steps, and the masters of narrow parameters where there are any."""
        moments = []
        for p in self.masters:
            state = self._adamw.state.get(p)
            moments.append({} if not state else {k: state[k].clone() for k in ("step", "exp_avg", "exp_avg_sq")})
        masters = [master.detach().clone() for _, master in self._narrow]
        return {"applied": self.applied, "moments": moments} | ({"masters": masters} if masters else {})

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Stand where the state stood. One without masters was written before there were any: they start as the parameters are now."""
        moments, masters = state["moments"], state.get("masters", [p for p, _ in self._narrow])
        if not isinstance(moments, list) or len(moments) != len(self.parameters):
            raise ValueError("optimizer state has another number of parameters than the model")
        if not isinstance(masters, list) or [m.shape for m in masters] != [m.shape for _, m in self._narrow]:
            raise ValueError("optimizer state has masters of other parameters than the model's")
        self.applied = int(str(state["applied"]))
        with torch.no_grad():
            for (_, master), kept in zip(self._narrow, masters, strict=True):
                master.copy_(kept)
        self._round()
        for p, kept in zip(self.masters, moments, strict=True):
            dtypes = {"step": torch.float32, "exp_avg": p.dtype, "exp_avg_sq": p.dtype}
            self._adamw.state[p] = {k: v.to(p.device, dtypes[k], copy=True) for k, v in kept.items()}
