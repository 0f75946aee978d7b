"""What a method at each control point can be called with: the chain's view of methods, which define any subset of these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trimtab.control.protocol import (
    Credit,
    Gradient,
    GroupStats,
    Keep,
    Refuse,
    Reject,
    Skip,
    StepView,
    View,
    Weighing,
)

if TYPE_CHECKING:
    from torch import Tensor


class Accepts(Protocol):
    def accept(self, group: GroupStats) -> Reject | None: ...


class Shapes(Protocol):
    def shape(self, view: View) -> Tensor: ...


class Weighs(Protocol):
    def weigh(self, view: View) -> Weighing: ...


class Units(Protocol):
    def unit(self, view: View, w: Weighing) -> Tensor: ...


class Credits(Protocol):
    def credit(self, view: View, w: Weighing) -> Credit: ...


class Surveys(Protocol):
    def survey(self, view: View, advantage_N: Tensor | None) -> None: ...


class Objects(Protocol):
    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor: ...


class GradientControls(Protocol):
    def gradient(self, g: Gradient) -> Keep | Skip: ...


class Aligns(Protocol):
    cosine: float | None


class StepControls(Protocol):
    def step(self, s: StepView) -> float | Refuse: ...
