"""Forward and backward of a packed batch: the model's graph ends at ``current_N`` and ``entropy_N``.

Every loss is a per-token coefficient: d_N on the log-probs and h_N on the entropies. Under per-rollout gradient norms the
backward first carries the unit coefficient q_N, then the norms are known, then the gradient of
sum_R c_R sum_{N in R} q_N current_N is formed by the pass's route (``norms/``).
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.learner.attention import attend_packed, hidden_states
from trimtab.learner.head import BUDGET, Head
from trimtab.learner.packing import Packed


class Pass:
    """One forward. ``current_N``, and with ``vocab`` ``entropy_N`` and ``sum_p2_N``, are detached; the graph is alive inside."""

    def __init__(self, packed: Packed, outputs: tuple[Tensor, Tensor | None, Tensor | None]) -> None:
        self._packed = packed
        self._current_H, self._entropy_H, sum_p2_H = outputs
        self.current_N = self._current_H.detach()[packed.to_N]
        self.entropy_N = None if self._entropy_H is None else self._entropy_H.detach()[packed.to_N]
        self.sum_p2_N = None if sum_p2_H is None else sum_p2_H[packed.to_N]

    def backward(self, d_N: Tensor, h_N: Tensor | None = None) -> None:
        """Accumulate into ``.grad`` the gradient of sum d_N current_N + h_N entropy_N."""
        outputs, coefficients = [self._current_H], [d_N[self._packed.to_H].to(self._current_H.dtype)]
        if h_N is not None:
            if self._entropy_H is None:
                raise RuntimeError("Pass.backward: h_N given, but the forward ran without vocab=True")
            outputs.append(self._entropy_H)
            coefficients.append(h_N[self._packed.to_H].to(self._entropy_H.dtype))
        torch.autograd.backward(outputs, coefficients)


class PackedModel:
    """A transformers causal language model, tied or untied, that runs packed batches.

    ``logits``: how many logits may be alive at a time.
    """

    def __init__(self, model: PreTrainedModel, *, logits: int = BUDGET) -> None:
        attend_packed(model)
        self.model = model
        self._weight: Tensor = model.get_output_embeddings().weight  # type: ignore[no-untyped-call]
        self._logits = logits

    @property
    def device(self) -> torch.device:
        return self._weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self._weight.dtype

    def parameters(self) -> list[torch.nn.Parameter]:
        """The trainable parameters, each once (a tied weight is one)."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def forward(self, packed: Packed, *, norms: bool = False, vocab: bool = False) -> Pass:
        """Run the model; ``norms`` prepares for :meth:`Pass.norms`, ``vocab`` computes entropy and sum of squared probabilities."""
        return Pass(packed, self._head(packed, vocab))

    @torch.no_grad()
    def score(self, packed: Packed) -> Tensor:
        """current_N without a graph."""
        return self._head(packed, vocab=False)[0][packed.to_N]

    def _head(self, packed: Packed, vocab: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
        hidden = hidden_states(self.model, packed.tokens_P, packed.positions_P, packed.segments)
        head = Head(self._weight, packed, vocab=vocab, budget=self._logits)
        return head(hidden.index_select(0, packed.predict_H))
