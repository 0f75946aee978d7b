"""Record every parametric module's input and output in a forward, then run one activation-only backward through them.

Autograd computes only what the outputs asked of it need: asked for the gradient of the first recorded outputs, it carries e
through the whole network and forms no weight gradient. Hooks hand each e to its module's unit while it is in cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from trimtab.learner.head import Head
from trimtab.learner.layout import BlockLayout
from trimtab.learner.norms.registry import Registry
from trimtab.learner.norms.units import Buffers, GainUnit, Input, LinearUnit, NormBudget, ParameterGradient
from trimtab.learner.norms.vocab import EmbeddingUnit, HeadUnit
from trimtab.records import TrimtabError


class Weighted(Protocol):
    """Knows the gradient of sum_R c_R sum q current with respect to a module's parameters; c_R and c_P in packed order."""

    def finish(self, c_R: Tensor, c_P: Tensor) -> Iterator[ParameterGradient]: ...


class Unit(Weighted, Protocol):
    """Takes the output gradient of its module."""

    def receive(self, e: Tensor) -> None: ...


class Tape:
    """(input, output) of every module of the registry, in the order of the forward."""

    def __init__(self, registry: Registry, rows: int) -> None:
        self.registry, self.rows = registry, rows
        self.records: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the forward run inside.

        Raises:
            TrimtabError: a module was called twice, not at all, or not on the packed rows.
        """
        handles = [m.register_forward_hook(self._record) for m in self.registry.names]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        for module, name in self.registry.names.items():
            if module not in self.records:
                raise TrimtabError(f"{name} was not called in the forward: per-sequence norms need every trainable module called once")

    def _record(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        name = self.registry.names[module]
        if module in self.records:
            raise TrimtabError(f"{name} is called more than once in a forward: per-sequence norms know modules that are used once")
        if output.shape[:2] != (1, self.rows):
            raise TrimtabError(
                f"{name} gives shape {tuple(output.shape)}: per-sequence norms need one row for each of {self.rows} packed tokens"
            )
        self.records[module] = (args[0], output)

    def units(self, head: Head, q_H: Tensor, budget: NormBudget) -> tuple[list[tuple[Unit, Tensor]], HeadUnit, EmbeddingUnit | None]:
        """The unit of each module with its output, the head's unit, and the embedding's if the head is tied to it."""
        head_unit = HeadUnit(head, self.registry.head.weight, q_H, budget)
        inputs: dict[int, Input] = {}
        units: list[tuple[Unit, Tensor]] = []
        tied: EmbeddingUnit | None = None
        for module, (x, y) in self.records.items():
            unit: Unit
            if isinstance(module, nn.Linear):
                # The input tensor is alive in the records, so its identity is that of the value.
                shared = inputs.get(id(x))
                if shared is None:
                    shared = inputs[id(x)] = Input(x.detach().reshape(self.rows, -1), budget.layout)
                shared.sharing += 1
                unit = LinearUnit(self.registry.names[module], module, shared, budget)
            elif isinstance(module, nn.Embedding):
                is_tied = self.registry.tied and module is self.registry.embedding
                unit = EmbeddingUnit(module, x, budget, head_unit if is_tied else None)
                tied = unit if is_tied else tied
            else:
                unit = GainUnit(module, x.detach(), budget)
            units.append((unit, y))
        return units, head_unit, tied


class Measured:
    """What one activation-only backward leaves: the norms, and units that know the gradient of any re-weighting."""

    def __init__(self, norm2_R: Tensor, units: Sequence[Weighted], layout: BlockLayout) -> None:
        self.norm2_R, self._units, self._layout = norm2_R, units, layout
        self._spent = False

    def accumulate(self, c_R: Tensor) -> None:
        """Add to ``.grad`` the gradient of sum_R c_R sum q current; c_R in packed order. Once."""
        if self._spent:
            raise RuntimeError("finish: this pass has given its gradient")
        self._spent = True
        c_P = c_R[self._layout.owner]
        for unit in self._units:
            for parameter, gradient in unit.finish(c_R, c_P):
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self._units = ()


def measure(
    tape: Tape, head: Head, hidden_H: Tensor, q_H: Tensor, *, layout: BlockLayout, buffers: Buffers, memory: int, weighted: bool
) -> Measured:
    """Per-rollout squared norms of the gradient of sum q current over all trainable parameters, packed order.

    ``weighted``: keep what :meth:`Measured.accumulate` needs, and free the graph; otherwise keep only the graph.
    """
    budget = NormBudget(layout, hidden_H, left=memory, buffers=buffers, weighted=weighted)
    with torch.no_grad():
        units, head_unit, tied = tape.units(head, q_H, budget)
        dhidden_H = head_unit.measure(tied)
    roots = [y for x, y in tape.records.values() if y.requires_grad and not x.requires_grad]
    handles = [y.register_hook(unit.receive) for unit, y in units]
    if weighted:
        tape.records.clear()
    if roots:
        torch.autograd.grad(hidden_H, roots, dhidden_H, retain_graph=not weighted)
    if not weighted:
        # The second backward through the retained graph would call the units again.
        for handle in handles:
            handle.remove()
        return Measured(budget.total(), [], layout)
    return Measured(budget.total(), [*(unit for unit, _ in units), head_unit], layout)
