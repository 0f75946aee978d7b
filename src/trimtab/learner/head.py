"""The LM head: log-probs of the action tokens and every gradient through them, never more than ``budget`` logits at a time.

With z = hidden W^T / temperature over the kept set, p = softmax(z), y the target and H = -sum p log p:

    current = z_y - log sum e^z            d current / dz_v = [v = y] - p_v
    entropy = H                            d entropy / dz_v = -p_v (log p_v + H)

so with coefficients d and h, dz = d ([v = y] - p) - h p (log p + H), d hidden = (dz / temperature) W and dW = (dz / temperature)^T hidden.
Where the N x V logits fit the budget they are computed once and log p is kept; otherwise each row x vocabulary chunk is computed
in the forward (running sums) and again where its gradient is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from trimtab.engines.vocabulary import Vocabulary
from trimtab.functional.logprobs import fold, kept_mask, pick, scaled_logits, start
from trimtab.learner.packing import Packed

BUDGET = 2**22  # logits alive at a time: 16 MiB in float32, about a last-level cache
_ROWS = 1024


class Head:
    """One evaluation of the head at the H rows of ``packed`` that predict action tokens (packed order).

    ``ids``: those that can be sampled, by default all; there are no others here, neither in a sum over the vocabulary nor in dW.
    """

    def __init__(
        self, weight_VD: Tensor, packed: Packed, *, vocab: bool = False, budget: int = BUDGET, ids: Vocabulary | None = None
    ) -> None:
        self.weight = weight_VD
        self.packed = packed
        self.vocab = vocab
        self.rows = packed.targets_H.shape[0]
        self.ids = ids or Vocabulary(weight_VD.shape[0], weight_VD.shape[0])
        self.width = self.ids.size
        self.whole = self.rows * self.width <= budget
        self._row_chunk = self.rows if self.whole else min(self.rows, _ROWS)
        self._vocab_chunk = self.width if self.whole else max(1, min(self.width, budget // self._row_chunk))
        self.budget = budget
        self.hidden: Tensor
        self._logp: Tensor | None = None  # [H, V], kept only if whole
        self._log_z: Tensor
        self._entropy: Tensor | None = None

    def __call__(self, hidden_HD: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(current_H, entropy_H | None, sum_p2_H | None): the first two differentiable in ``hidden_HD`` and the weight."""
        outputs: tuple[Tensor, Tensor | None, Tensor | None] = _Evaluate.apply(hidden_HD, self.weight, self)  # type: ignore[no-untyped-call]
        return outputs

    def row_slices(self, size: int | None = None) -> Iterator[slice]:
        step = size or self._row_chunk
        return (slice(a, min(a + step, self.rows)) for a in range(0, self.rows, step))

    def vocab_slices(self, rows: int | None = None) -> Iterator[tuple[int, int]]:
        """Vocabulary chunks [low, high) that keep ``rows`` rows within the budget."""
        step = self._vocab_chunk if rows is None else max(1, min(self.width, self.budget // max(rows, 1)))
        return ((low, min(low + step, self.width)) for low in range(0, self.width, step))

    def evaluate(self, hidden_HD: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        self.hidden = hidden_HD
        target = self.packed.targets_H
        if self.whole:
            logp = torch.log_softmax(self._logits(slice(0, self.rows), 0, self.width), 1)
            current = pick(logp, target)
            self._logp = logp
            if not self.vocab:
                return current, None, None
            p = logp.exp()
            self._entropy = -(p * logp.masked_fill(logp == -math.inf, 0.0)).sum(1)
            return current, self._entropy, p.square_().sum(1)

        like = hidden_HD.new_empty(self.rows, dtype=torch.promote_types(hidden_HD.dtype, torch.float32))
        current, self._log_z = torch.empty_like(like), torch.empty_like(like)
        self._entropy = torch.empty_like(like) if self.vocab else None
        sum_p2 = torch.empty_like(like) if self.vocab else None
        for rows in self.row_slices():
            sums = start(like[rows], entropy=self.vocab, sum_p2=self.vocab)
            chosen = torch.full_like(sums.top, -math.inf)
            for low, high in self.vocab_slices():
                z = self._logits(rows, low, high)
                chosen = torch.maximum(chosen, pick(z, target[rows], low))
                sums = fold(sums, z)
            self._log_z[rows] = sums.log_z()
            current[rows] = chosen - self._log_z[rows]
            if self._entropy is not None and sum_p2 is not None:
                self._entropy[rows], sum_p2[rows] = sums.entropy(), sums.sum_p2()
        return current, self._entropy, sum_p2

    def dlogits(self, rows: slice, low: int, high: int, d_H: Tensor, h_H: Tensor | None = None) -> Tensor:
        """d (sum d current + h entropy) / d (hidden W^T) for a chunk, [rows, high - low], in the dtype of ``hidden``."""
        logp = self._logp[rows, low:high] if self._logp is not None else self._logits(rows, low, high) - self._log_z[rows, None]
        d = d_H[rows].to(logp.dtype)
        if h_H is None:
            dz = logp.exp() if self._logp is not None else logp.exp_()
            dz.mul_(-d[:, None])
        else:
            if self._entropy is None:
                raise RuntimeError("Head: an entropy coefficient needs a forward with vocab=True")
            p = logp.exp()
            h = h_H[rows].to(logp.dtype)
            # Outside the kept set p = 0 and log p = -inf: the product is 0, not NaN.
            dz = (logp.masked_fill(logp == -math.inf, 0.0) + self._entropy[rows, None]).mul_(h[:, None]).add_(d[:, None]).mul_(p).neg_()
        target = self.packed.targets_H[rows]
        inside = (target >= low) & (target < high)
        dz.scatter_add_(1, (target - low).clamp(0, high - low - 1)[:, None], torch.where(inside, d, 0.0)[:, None])
        if self.packed.temperature_H is not None:
            dz.div_(self.packed.temperature_H[rows, None].to(dz.dtype))
        return dz.to(self.hidden.dtype)

    def backward(
        self, d_H: Tensor, h_H: Tensor | None = None, *, hidden: bool = True, weight: bool = True
    ) -> tuple[Tensor | None, Tensor | None]:
        """(d hidden, dW) of sum d current + h entropy; None for what is not asked."""
        if self.whole:
            dz = self.dlogits(slice(0, self.rows), 0, self.width, d_H, h_H)
            return dz @ self.reached if hidden else None, self._weight_gradient(dz) if weight else None
        dhidden = torch.zeros_like(self.hidden) if hidden else None
        dweight = torch.zeros_like(self.weight) if weight else None
        for rows in self.row_slices():
            for low, high in self.vocab_slices():
                dz = self.dlogits(rows, low, high, d_H, h_H)
                if dhidden is not None:
                    dhidden[rows].addmm_(dz, self.weight[low:high])
                if dweight is not None:
                    dweight[low:high].addmm_(dz.T, self.hidden[rows])
        return dhidden, dweight

    @property
    def reached(self) -> Tensor:
        """The rows of the weight whose ids may be sampled."""
        return self.weight[: self.width]

    def new_gradient(self) -> tuple[Tensor, Tensor]:
        """A gradient of the weight, zero beyond the ids, and its rows of ids, [width, D], still to be filled."""
        gradient = self.weight.new_empty(self.weight.shape)
        gradient[self.width :] = 0
        return gradient, gradient[: self.width]

    def _weight_gradient(self, dz: Tensor) -> Tensor:
        gradient, rows = self.new_gradient()
        torch.mm(dz.T, self.hidden, out=rows)
        return gradient

    def _logits(self, rows: slice, low: int, high: int) -> Tensor:
        packed = self.packed
        keep = None
        if packed.kept_H is not None:
            keep = kept_mask(packed.kept_H, rows, low, high)
            if packed.uncut_H is not None:
                keep |= packed.uncut_H[rows, None]
        temperature = 1.0 if packed.temperature_H is None else packed.temperature_H[rows]
        return self.ids.cut(scaled_logits(self.hidden[rows], self.weight[low:high], temperature, keep), low)


class _Evaluate(torch.autograd.Function):
    """Autograd's view of a :class:`Head`. The weight is saved so that autograd notices if it changes before the backward."""

    @staticmethod
    def forward(ctx, hidden_HD: Tensor, weight_VD: Tensor, head: Head):  # type: ignore[no-untyped-def]
        ctx.head = head
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weight_VD)
        current, entropy, sum_p2 = head.evaluate(hidden_HD.detach())
        if sum_p2 is not None:
            ctx.mark_non_differentiable(sum_p2)
        return current, entropy, sum_p2

    @staticmethod
    def backward(ctx, d_H, h_H, _):  # type: ignore[no-untyped-def]
        ctx.saved_tensors  # noqa: B018 - raises if the weight was stepped since the forward
        d_H = torch.zeros_like(h_H) if d_H is None else d_H
        dhidden, dweight = ctx.head.backward(d_H, h_H, hidden=ctx.needs_input_grad[0], weight=ctx.needs_input_grad[1])
        return dhidden, dweight, None
