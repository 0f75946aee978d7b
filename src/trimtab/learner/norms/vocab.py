"""Per-rollout gradients of the two matrices indexed by token id: the LM head and the input embedding, tied or not.

Head: with dz = d (sum q current) / d (hidden W^T), rollout i's gradient is dz_i^T h_i. Embedding: the sum of e over the rows of
rollout i that hold id v. Where both are one parameter, ||head + embedding||^2 = ||head||^2 + ||embedding||^2 +
2 sum_v <E_iv, (dz_i^T h_i)_v>.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trimtab.learner.head import Head
from trimtab.learner.norms.units import NormBudget, ParameterGradient


class EmbeddingUnit:
    """An embedding: e summed over equal (rollout, id), so that nothing of size rollouts x vocabulary is made."""

    def __init__(self, module: nn.Embedding, ids: Tensor, budget: NormBudget, head: HeadUnit | None = None) -> None:
        self.module, self.budget, self.head = module, budget, head
        key = budget.layout.owner * module.num_embeddings + ids.reshape(-1)
        unique, self._place = torch.unique(key, return_inverse=True)
        self.rollout_U, self.id_U = unique // module.num_embeddings, unique % module.num_embeddings
        self.e_UD: Tensor

    def receive(self, e: Tensor) -> None:
        e = e.reshape(self.budget.layout.rows, -1)
        self.e_UD = e.new_zeros(self.id_U.shape[0], e.shape[1]).index_add_(0, self._place, e)
        if self.module.padding_idx is not None:
            # torch gives the padding row no gradient, whoever looks it up.
            self.e_UD[self.id_U == self.module.padding_idx] = 0
        self.budget.norm2_R.index_add_(0, self.rollout_U, self.e_UD.double().square().sum(1))
        if self.head is not None:
            self.head.cross(self)

    def finish(self, c_R: Tensor, c_P: Tensor) -> Iterator[ParameterGradient]:
        weight = self.module.weight
        yield weight, torch.zeros_like(weight).index_add_(0, self.id_U, self.e_UD * c_R[self.rollout_U, None])


class HeadUnit:
    """The LM head at the rows that predict action tokens."""

    def __init__(self, head: Head, weight: Tensor, q_H: Tensor, budget: NormBudget) -> None:
        self.head, self.weight, self.q_H, self.budget = head, weight, q_H, budget
        self._layout = head.packed.actions
        self._kept: Tensor | None = None
        self._crossed: list[tuple[int, slice, slice, Tensor]] = []

    def measure(self, tied: EmbeddingUnit | None) -> Tensor:
        """Add the head's norms if it is trained; return d (sum q current) / d hidden."""
        dhidden = self.add(tied) if self.weight.requires_grad else self.head.backward(self.q_H, weight=False)[0]
        assert dhidden is not None
        return dhidden

    def add(self, tied: EmbeddingUnit | None = None, *, hidden: bool = True) -> Tensor | None:
        """Add the head's norms; d (sum q current) / d hidden where ``hidden`` asks for it."""
        size = len(self._layout.lengths) * self.head.reached.numel() * self.weight.element_size()
        if self.head.whole and size <= self.budget.left:
            self.budget.left -= size
            return self._materialize(hidden)
        return self._gram(tied, hidden)

    def _materialize(self, hidden: bool) -> Tensor | None:
        head = self.head
        dz = head.dlogits(slice(0, head.rows), 0, head.width, self.q_H)
        self._kept = dz.new_zeros(len(self._layout.lengths), *head.reached.shape)
        for b in self._layout.blocks:
            self._kept[b.members] = torch.bmm(b.take_zero(dz).mT, b.take(head.hidden))
        self.budget.add(self._kept)
        return dz @ head.reached if hidden else None

    def _gram(self, tied: EmbeddingUnit | None, hidden: bool) -> Tensor | None:
        """Rollout by rollout, vocabulary chunk by chunk: ||dz^T h||^2 = sum_{s,t} <dz_s, dz_t> <h_s, h_t>."""
        head = self.head
        dhidden = torch.zeros_like(head.hidden) if hidden else None
        first, looked = 0, 0
        counts = [] if tied is None else torch.bincount(tied.rollout_U, minlength=len(self._layout.lengths)).tolist()
        for i, n in enumerate(self._layout.lengths):
            rows = slice(first, first + n)
            first += n
            u = slice(looked, looked + counts[i]) if tied is not None else slice(0, 0)
            looked = u.stop
            if not n:
                continue
            gram = head.hidden.new_zeros(n, n)
            at_ids = head.hidden.new_zeros(n, u.stop - u.start)  # stays 0 at ids beyond those that can be sampled
            for low, high in head.vocab_slices(n):
                dz = head.dlogits(rows, low, high, self.q_H)
                if dhidden is not None:
                    dhidden[rows].addmm_(dz, self.weight[low:high])
                gram.addmm_(dz, dz.T)
                if tied is not None:
                    here = (tied.id_U[u] >= low) & (tied.id_U[u] < high)
                    at_ids[:, here] = dz[:, tied.id_U[u][here] - low]
            h = head.hidden[rows]
            self.budget.norm2_R[i] += (gram * (h @ h.T)).sum(dtype=torch.float64)
            if tied is not None:
                self._crossed.append((i, rows, u, at_ids))
        return dhidden

    def cross(self, tied: EmbeddingUnit) -> None:
        """Add the cross term of a tied weight, once the embedding's e is known."""
        if self._kept is not None:
            u = (tied.id_U < self.head.width).nonzero()[:, 0]  # a prompt may hold an id that cannot be sampled
            inner = (self._kept[tied.rollout_U[u], tied.id_U[u]] * tied.e_UD[u]).sum(1, dtype=torch.float64)
            self.budget.norm2_R.index_add_(0, tied.rollout_U[u], 2 * inner)
        for i, rows, u, at_ids in self._crossed:
            self.budget.norm2_R[i] += 2 * (at_ids * (self.head.hidden[rows] @ tied.e_UD[u].T)).sum(dtype=torch.float64)

    def finish(self, c_R: Tensor, c_P: Tensor) -> Iterator[ParameterGradient]:
        if not self.weight.requires_grad:
            return
        if self._kept is not None:
            gradient, rows = self.head.new_gradient()
            torch.mm(c_R[None], self._kept.flatten(1), out=rows.view(1, -1))
            yield self.weight, gradient
        else:
            _, whole = self.head.backward(self.q_H * c_R[self._layout.owner], hidden=False)
            assert whole is not None
            yield self.weight, whole
