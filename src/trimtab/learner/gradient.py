"""The finished gradient as one vector: what methods of the gradient point see, and the sketch behind the logged cosine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from trimtab import functional as F
from trimtab.control.protocol import GradientCopy, Recorder


@dataclass(slots=True)
class Copied:
    """A kept copy of a gradient, one tensor a parameter."""

    parts: list[Tensor]
    norm2: float

    def state(self) -> Sequence[Tensor]:
        return self.parts


def _nothing() -> tuple[Tensor, Tensor]:
    return torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)


class ActorGradient:
    """``.grad`` of the actor's parameters as one vector (control.learner_side.Gradient). Parameters without a gradient count as 0.

    ``groups``: the parameter group of each parameter, for :meth:`split`. ``weights`` gives (weight_R, length_R) where asked.
    ``whole``: what this is a part of.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        batch_id: int,
        mini_step: int,
        recorder: Recorder,
        *,
        groups: Sequence[str] = (),
        weights: Callable[[], tuple[Tensor, Tensor]] = _nothing,
        whole: ActorGradient | None = None,
    ) -> None:
        self._weights, self._whole = cache(weights), whole  # gathered once, however often it is asked for
        self._parameters, self._groups = parameters, groups
        self._parts = [p.grad for p in parameters if p.grad is not None]
        self.batch_id, self.mini_step, self.recorder = batch_id, mini_step, recorder
        self.raw_norm = F.gradients.global_norm(self._parts)
        self._norm: float | None = self.raw_norm  # None: a part has changed since

    @property
    def weight_R(self) -> Tensor:
        return self._weights()[0]

    @property
    def length_R(self) -> Tensor:
        return self._weights()[1]

    def norm(self) -> float:
        if self._norm is None:
            self._norm = F.gradients.global_norm(self._parts)
        return self._norm

    def dot(self, other: GradientCopy) -> float:
        pairs = zip(self._parts, other.state(), strict=True)
        return float(sum((a.double() * b.double()).sum() for a, b in pairs))

    def scale(self, factor: float) -> None:
        norm = self.norm()
        for g in self._parts:
            g.mul_(factor)
        self._changed(norm * factor)

    def axpy(self, alpha: float, other: GradientCopy) -> None:
        for g, p in zip(self._parts, other.state(), strict=True):
            g.add_(p, alpha=alpha)
        self._changed(None)

    def _changed(self, norm: float | None) -> None:
        self._norm = norm
        if self._whole is not None:
            self._whole._changed(None)

    def copy(self, dtype: torch.dtype | None = None) -> Copied:
        parts = [g.to(dtype or g.dtype, copy=True) for g in self._parts]
        return Copied(parts, F.gradients.global_norm(parts) ** 2)

    def restored(self, parts: Sequence[Tensor]) -> Copied | None:
        if [g.shape for g in parts] != [g.shape for g in self._parts]:
            return None
        here = [p.to(g.device) for p, g in zip(parts, self._parts, strict=True)]
        return Copied(here, F.gradients.global_norm(here) ** 2)

    def split(self) -> Mapping[str, ActorGradient]:
        members: dict[str, list[nn.Parameter]] = {}
        for p, group in zip(self._parameters, self._groups, strict=True):
            members.setdefault(group, []).append(p)
        return {
            name: ActorGradient(ps, self.batch_id, self.mini_step, self.recorder, weights=self._weights, whole=self)
            for name, ps in members.items()
        }

    @property
    def parts(self) -> Sequence[Tensor]:
        return self._parts


def parameter_groups(names: Sequence[str]) -> list[str]:
    """The group of each parameter name: its layer (``model.layers.3``) where it has one, else its name without the last part."""
    found = []
    for name in names:
        parts = name.split(".")
        index = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
        found.append(".".join(parts[: index + 1]))
    return found


class CosineSketch:
    """Cosine of a gradient with the previous one from a count sketch (Charikar, Chen & Farach-Colton 2002) of 4,096 columns.

    Coordinate j adds ``s_j g_j`` to column ``h_j``; ``<Sg, Sp>`` estimates ``<g, p>`` with standard deviation
    ``<= sqrt(2 / 4096) |g| |p|``, so the logged cosine is good to about 0.02. State: one vector of 4,096 numbers.
    """

    COLUMNS = 4096
    # Hashes are kept for models up to this many parameters (9 bytes each), else drawn again at each step.
    CACHED = 16_000_000

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._cache: list[tuple[Tensor, Tensor]] = []
        self.previous: Tensor | None = None

    def _hashes(self, index: int, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
        generator = torch.Generator(device).manual_seed(self._seed * 1_000_003 + index)
        column = torch.randint(self.COLUMNS, (n,), generator=generator, device=device)
        sign = torch.randint(2, (n,), generator=generator, device=device, dtype=torch.int8) * 2 - 1
        return column, sign

    def _sketch(self, parts: Sequence[Tensor]) -> Tensor:
        cached = sum(g.numel() for g in parts) <= self.CACHED
        if cached and len(self._cache) != len(parts):
            self._cache = [self._hashes(i, g.numel(), g.device) for i, g in enumerate(parts)]
        out = torch.zeros(self.COLUMNS, dtype=torch.float32, device=parts[0].device)
        for i, g in enumerate(parts):
            column, sign = self._cache[i] if cached else self._hashes(i, g.numel(), g.device)
            out.index_add_(0, column, g.reshape(-1).float() * sign)
        return out

    def observe(self, parts: Sequence[Tensor]) -> float | None:
        """Cosine with the gradient seen before (None at the first), then remember this one."""
        if not parts:
            return None
        now, before = self._sketch(parts), self.previous
        self.previous = now
        if before is None:
            return None
        scale = float(now.double().norm() * before.double().norm())
        return float(now.double() @ before.double()) / scale if scale > 0 else 0.0
