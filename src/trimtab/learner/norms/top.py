"""Stand-ins for the per-rollout norms, read at the top of the network, where the gradient starts; then an ordinary backward.

``last_layer``  ||dz_i^T h_i||^2, the LM head's gradient, exactly: known from logits and hidden states, before any backward.
``sketch``      that, and as many of the model's last Linears as a small share of the step pays for (``estimate.sketched``: none in a
                narrow model, a few blocks in a deep one). A backward cut off below them gives their e; each gradient is projected on
                random signs, E ||e_i^T x_i V||^2 = ||e_i^T x_i||^2, so that nothing of the size of a rollout's gradient is formed.

They are proportional to the full norm only roughly, and not of its size: good for shares within a group, which is what a baseline
weighs by. Frozen parameters count as well, and modules that exact norms do not know are no obstacle.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from trimtab.learner.head import Head
from trimtab.learner.norms.estimate import PROBES, Shape, sketched
from trimtab.learner.norms.registry import Registry
from trimtab.learner.norms.tape import Tape
from trimtab.learner.norms.units import Buffers, NormBudget
from trimtab.learner.norms.vocab import HeadUnit
from trimtab.learner.packing import Packed


def read_by_sketch(model: PreTrainedModel, rows: int, depth: int | None) -> Registry:
    """What the sketch records of a forward of so many rows: the last ``depth`` Linears, or those that its share of the step pays for."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()  # type: ignore[no-untyped-call]
    linears = [(m, name) for name, m in model.named_modules() if type(m) is nn.Linear and m is not head]
    if depth is None:
        depth = sketched([Shape(m.in_features, m.out_features) for m, _ in linears], rows, head.weight.element_size())
    return Registry(dict(linears[max(len(linears) - depth, 0) :]), head, embedding, head.weight is embedding.weight)


class Signs:
    """V of each Linear by its name: random signs over sqrt(PROBES), the same in every batch and every process."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def project(self, name: str, x: Tensor) -> Tensor:
        v = self._kept.get(name)
        if v is None or v.dtype != x.dtype or v.device != x.device:
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            v = torch.randint(0, 2, (x.shape[1], PROBES), generator=generator).mul_(2).sub_(1).to(x) / PROBES**0.5
            self._kept[name] = v
        return x @ v


class TopRoute:
    """Norms of one packed forward by ``last_layer`` (no tape) or ``sketch``; the re-weighted gradient by an ordinary backward."""

    def __init__(
        self,
        packed: Packed,
        head: Head,
        hidden_H: Tensor,
        current_H: Tensor,
        weight: nn.Parameter,
        tape: Tape | None,
        *,
        signs: Signs,
        buffers: Buffers,
        memory: int,
    ) -> None:
        self._packed, self._head, self._hidden_H, self._current_H, self._weight = packed, head, hidden_H, current_H, weight
        self._tape, self._signs, self._buffers, self._memory = tape, signs, buffers, memory
        self._q_H: Tensor | None = None

    def norms(self, q_N: Tensor, pre_R: Tensor, reward_R: Tensor, group_R: Tensor) -> Tensor:
        if self._q_H is not None:
            raise RuntimeError("norms: already measured; a pass has one unit coefficient")
        packed = self._packed
        self._q_H = q_N[packed.to_H].to(self._current_H.dtype)
        budget = NormBudget(packed.rows, self._hidden_H, left=self._memory, buffers=self._buffers, weighted=False)
        records = {} if self._tape is None else {m: (x, y) for m, (x, y) in self._tape.records.items() if y.requires_grad}
        with torch.no_grad():
            dhidden_H = HeadUnit(self._head, self._weight, self._q_H, budget).add(hidden=bool(records))
        if dhidden_H is not None:
            es = torch.autograd.grad(self._hidden_H, [y for _, y in records.values()], dhidden_H, retain_graph=True)
            self._project(records, es, budget)
        return budget.total()[packed.packed_R]

    @torch.no_grad()
    def _project(self, records: Mapping[nn.Module, tuple[Tensor, Tensor]], es: tuple[Tensor, ...], budget: NormBudget) -> None:
        assert self._tape is not None
        rows, projected = self._packed.rows.rows, dict[int, Tensor]()
        for (module, (x, _)), e in zip(records.items(), es, strict=True):
            if id(x) not in projected:  # alive in the records, so its identity is that of the value
                projected[id(x)] = self._signs.project(self._tape.registry.names[module], x.reshape(rows, -1))
            for b in budget.layout.blocks:
                g = torch.bmm(b.take_zero(e.reshape(rows, -1)).mT, b.take(projected[id(x)]))
                budget.norm2_R[b.members] += torch.linalg.vector_norm(g, dim=(1, 2)).double().square_()

    def finish(self, c_R: Tensor) -> None:
        if self._q_H is None:
            raise RuntimeError("finish: call norms first")
        packed = self._packed
        torch.autograd.backward(self._current_H, (c_R[packed.rollout_N][packed.to_H] * self._q_H).to(self._current_H.dtype))
