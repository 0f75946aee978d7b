"""Forward and backward of a packed batch: the model's graph ends at ``current_N`` and ``entropy_N``.

Every loss is a per-token coefficient: d_N on the log-probs and h_N on the entropies. Under per-rollout gradient norms the
backward first carries the unit coefficient q_N, then the norms are known, then the gradient of
sum_R c_R sum_{N in R} q_N current_N is formed by the pass's route (``norms/``). Estimated norms need no such backward, or the
beginning of one.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from trimtab.control.points import NormEstimator
from trimtab.engines.vocabulary import Vocabulary
from trimtab.learner.attention import attend_packed, hidden_states
from trimtab.learner.head import BUDGET, Head
from trimtab.learner.norms.estimate import Route, Shape, choose_route, estimate
from trimtab.learner.norms.registry import Registry, survey
from trimtab.learner.norms.routes import TapeRoute
from trimtab.learner.norms.tape import Tape
from trimtab.learner.norms.top import Signs, TopRoute, read_by_sketch
from trimtab.learner.norms.two_buffer import TwoBuffer
from trimtab.learner.norms.units import Buffers
from trimtab.learner.packing import Packed

Outputs = tuple[Tensor, Tensor | None, Tensor | None]


class Norms(Protocol):
    """A route to per-rollout norms and the re-weighted gradient."""

    def norms(self, q_N: Tensor, pre_R: Tensor, reward_R: Tensor, group_R: Tensor) -> Tensor: ...
    def finish(self, c_R: Tensor) -> None: ...


class Pass:
    """One forward. ``current_N``, and with ``vocab`` ``entropy_N`` and ``sum_p2_N``, are detached; the graph is alive inside.

    Without norms: :meth:`backward`. With norms: :meth:`backward` for additive terms (any number of times, first), then
    :meth:`norms`, then :meth:`finish`.
    """

    def __init__(self, packed: Packed, outputs: Outputs, route: Norms | None = None) -> None:
        self._packed, self._route = packed, route
        self._current_H, self._entropy_H, sum_p2_H = outputs
        self.current_N = self._current_H.detach()[packed.to_N]
        self.entropy_N = None if self._entropy_H is None else self._entropy_H.detach()[packed.to_N]
        self.sum_p2_N = None if sum_p2_H is None else sum_p2_H[packed.to_N]

    def backward(self, d_N: Tensor, h_N: Tensor | None = None) -> None:
        """Accumulate into ``.grad`` the gradient of sum d_N current_N + h_N entropy_N."""
        if isinstance(self._route, TwoBuffer):
            self._route.backward(d_N, h_N)
            return
        outputs, coefficients = [self._current_H], [d_N[self._packed.to_H].to(self._current_H.dtype)]
        if h_N is not None:
            if self._entropy_H is None:
                raise RuntimeError("Pass.backward: h_N given, but the forward ran without vocab=True")
            outputs.append(self._entropy_H)
            coefficients.append(h_N[self._packed.to_H].to(self._entropy_H.dtype))
        torch.autograd.backward(outputs, coefficients, retain_graph=self._route is not None)

    def norms(self, q_N: Tensor, pre_R: Tensor, reward_R: Tensor, group_R: Tensor) -> Tensor:
        """||grad sum_{N in R} q_N current_N||^2 per rollout over all trainable parameters, or what stands for it, float64.

        ``pre_R``: the part of a rollout's final coefficient known now; it, ``reward_R`` and ``group_R`` serve ``two_buffer``.
        """
        if self._route is None:
            raise RuntimeError("Pass.norms: the forward ran without norms=True")
        return self._route.norms(q_N, pre_R, reward_R, group_R)

    def finish(self, c_R: Tensor) -> None:
        """Accumulate into ``.grad`` the gradient of sum_R c_R sum_{N in R} q_N current_N; once, after :meth:`norms`.

        Raises:
            TrimtabError: route ``two_buffer``, and c_R / pre_R is not affine in the reward within a group.
        """
        if self._route is None:
            raise RuntimeError("Pass.finish: the forward ran without norms=True")
        self._route.finish(c_R)


class PackedModel:
    """A transformers causal language model, tied or untied, that runs packed batches.

    ``estimator``: what per-rollout gradient norms are of. ``route``: how exact ones are formed; ``auto`` takes the cheapest whose
    estimate fits ``memory`` bytes beyond an ordinary backward (``norms/estimate.py``). ``depth``: how many Linears a sketch reads; by
    default those it can afford. ``logits``: how many logits may be alive at a time. ``ids``: the token ids that can be sampled, all by
    default.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        route: Route | Literal["auto"] = "auto",
        memory: int = 512 * 2**20,
        logits: int = BUDGET,
        estimator: NormEstimator = "exact",
        depth: int | None = None,
        ids: Vocabulary | None = None,
    ) -> None:
        attend_packed(model)
        self.model = model
        self._weight: nn.Parameter = model.get_output_embeddings().weight  # type: ignore[no-untyped-call]
        self._route, self._memory, self._logits, self._ids = route, memory, logits, ids
        self._estimator, self._depth, self._signs, self._buffers = estimator, depth, Signs(), Buffers()

    @property
    def device(self) -> torch.device:
        return self._weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self._weight.dtype

    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters, each once (a tied weight is one)."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def names(self) -> list[str]:
        """Their names, in the same order."""
        return [name for name, p in self.model.named_parameters() if p.requires_grad]

    @cached_property
    def registry(self) -> Registry:
        """Who owns the trainable parameters; touch it at start-up to have an unknown module refused before anything runs.

        Raises:
            TrimtabError: names the module per-sequence norms do not know.
        """
        return survey(self.model)

    def route_for(self, packed: Packed) -> Route:
        """The route a forward of ``packed`` with norms takes."""
        if self._route != "auto":
            return self._route
        linears = self.registry.linears
        shapes = [Shape(m.in_features, m.out_features) for m in linears]
        parameters = sum(p.numel() for p in self.parameters())
        return choose_route(estimate(shapes, parameters, packed.rows, self._weight.element_size(), self._memory), self._memory)

    def forward(self, packed: Packed, *, norms: bool = False, vocab: bool = False) -> Pass:
        """Run the model; ``norms`` prepares for :meth:`Pass.norms`, ``vocab`` computes entropy and sum of squared probabilities.

        Raises:
            TrimtabError: exact norms of a trainable module that is unknown, shared, or not called exactly once.
        """
        if not norms:
            return Pass(packed, self._run(packed, vocab)[2])
        if self._estimator != "exact":
            top = Tape(read_by_sketch(self.model, packed.rows.rows, self._depth), packed.rows.rows) if self._estimator == "sketch" else None
            head, hidden, outputs = self._run(packed, vocab, top)
            stand_in = TopRoute(
                packed, head, hidden, outputs[0], self._weight, top, signs=self._signs, buffers=self._buffers, memory=self._memory
            )
            return Pass(packed, outputs, stand_in)
        route, registry = self.route_for(packed), self.registry
        if route == "two_buffer":
            with torch.no_grad():
                outputs = self._run(packed, vocab)[2]
            return Pass(packed, outputs, TwoBuffer(packed, lambda one, v: self.forward(one, vocab=v), self.parameters()))
        tape = Tape(registry, packed.rows.rows)
        head, hidden, outputs = self._run(packed, vocab, tape)
        keep_graph = route == "two_pass"
        return Pass(
            packed,
            outputs,
            TapeRoute(packed, head, hidden, outputs[0], tape, buffers=self._buffers, memory=self._memory, keep_graph=keep_graph),
        )

    @torch.no_grad()
    def score(self, packed: Packed) -> Tensor:
        """current_N without a graph."""
        return self._run(packed, vocab=False)[2][0][packed.to_N]

    def _run(self, packed: Packed, vocab: bool, tape: Tape | None = None) -> tuple[Head, Tensor, Outputs]:
        with nullcontext() if tape is None else tape.recording():
            hidden = hidden_states(self.model, packed.tokens_P, packed.positions_P, packed.segments)
        head = Head(self._weight, packed, vocab=vocab, budget=self._logits, ids=self._ids)
        hidden_H = hidden.index_select(0, packed.predict_H)
        return head, hidden_H, head(hidden_H)
