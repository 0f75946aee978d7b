"""The two routes that run on one packed forward: ``bookkeeping`` and ``two_pass``.

``bookkeeping``: one activation-only backward; norms on the way; the re-weighted gradient is one product a layer, or the weighted
sum of per-rollout gradients that were kept. ``two_pass``: norms from an activation-only backward with the graph retained, then an
ordinary backward with the re-weighted coefficients; holds nothing but the graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.learner.head import Head
from trimtab.learner.norms.tape import Measured, Tape, measure
from trimtab.learner.norms.units import Buffers
from trimtab.learner.packing import Packed


class TapeRoute:
    """Norms and re-weighted gradient of one packed forward; ``keep_graph`` makes it ``two_pass``."""

    def __init__(
        self,
        packed: Packed,
        head: Head,
        hidden_H: Tensor,
        current_H: Tensor,
        tape: Tape,
        *,
        buffers: Buffers,
        memory: int,
        keep_graph: bool,
    ) -> None:
        self._packed, self._head, self._hidden_H, self._current_H, self._tape = packed, head, hidden_H, current_H, tape
        self._buffers, self._memory, self._keep_graph = buffers, memory, keep_graph
        self._measured: Measured | None = None
        self._q_H: Tensor

    def norms(self, q_N: Tensor, pre_R: Tensor, reward_R: Tensor, group_R: Tensor) -> Tensor:
        if self._measured is not None:
            raise RuntimeError("norms: already measured; a pass has one unit coefficient")
        packed = self._packed
        self._q_H = q_N[packed.to_H].to(self._current_H.dtype)
        self._measured = measure(
            self._tape,
            self._head,
            self._hidden_H,
            self._q_H,
            layout=packed.rows,
            buffers=self._buffers,
            memory=self._memory,
            weighted=not self._keep_graph,
        )
        return self._measured.norm2_R[packed.packed_R]

    def finish(self, c_R: Tensor) -> None:
        if self._measured is None:
            raise RuntimeError("finish: call norms first")
        packed = self._packed
        if self._keep_graph:
            torch.autograd.backward(self._current_H, (c_R[packed.rollout_N][packed.to_H] * self._q_H).to(self._current_H.dtype))
        else:
            c_packed = torch.zeros_like(c_R).index_copy_(0, packed.packed_R, c_R)
            self._measured.accumulate(c_packed.to(self._hidden_H.dtype))
