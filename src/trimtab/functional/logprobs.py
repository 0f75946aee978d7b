"""Log-probs of selected tokens, chunked over vocabulary and time: the N x V matrix of logits never exists.

The distribution is softmax(logits / temperature) over the kept set of each token (the whole vocabulary where there is none), the
same function that was sampled from. A running (max, sum) per token folds in one vocabulary chunk at a time:

    m' = max(m, max z),   s' = s e^(m - m') + sum e^(z - m'),   log p = (z - m) - log s

(Milakov & Gimelshein 2018, arXiv 1805.02867). Entropy and sum of squared probabilities come from two more such sums.
``start``, ``fold`` and ``scaled_logits`` are the pieces; a head with its own backward builds on them.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

# 256 x 8192 float32 logits are 8 MiB: inside a last-level cache, and large enough for a matrix product at full speed.
ROW_CHUNK = 256
VOCAB_CHUNK = 8192


class LogProbs(NamedTuple):
    """Per token: ``logp`` of the target, ``entropy`` H = -sum p log p and ``sum_p2`` = sum p^2 where they were asked for."""

    logp: Tensor
    entropy: Tensor | None
    sum_p2: Tensor | None


class KeptSets(NamedTuple):
    """Ragged kept sets: the ids allowed at token i are ``ids[indptr[i]:indptr[i+1]]`` (int64 tensors)."""

    indptr: Tensor
    ids: Tensor


class Partition(NamedTuple):
    """Running sums over the logits z seen so far, per token, relative to their maximum m.

    ``total`` sum e^(z-m); ``moment`` sum (z-m) e^(z-m); ``square`` sum e^(2(z-m)); the last two None unless asked for.
    """

    top: Tensor
    total: Tensor
    moment: Tensor | None
    square: Tensor | None

    def logp(self, z: Tensor) -> Tensor:
        """log p of one logit a token, (z - m) - log s: in this order large logits cost no digits, as z - log Z would.

        NaN where no logit above -inf was seen: an empty distribution has no log-probs.
        """
        return (z - self.top) - self.total.log()

    def log_z(self) -> Tensor:
        """log Z = m + log s: one number a token, from which exp(z - log Z) gives every probability again."""
        return self.top + self.total.log()

    def entropy(self) -> Tensor:
        """H = -sum p log p = log s - moment / s."""
        if self.moment is None:
            raise ValueError("Partition.entropy: start(entropy=True) keeps the sum it needs")
        return self.total.log() - self.moment / self.total

    def sum_p2(self) -> Tensor:
        """sum p^2 = square / s^2."""
        if self.square is None:
            raise ValueError("Partition.sum_p2: start(sum_p2=True) keeps the sum it needs")
        return self.square / self.total.square()


def start(like: Tensor, *, entropy: bool = False, sum_p2: bool = False) -> Partition:
    """The partition of nothing, for as many tokens as ``like`` has rows, in its dtype."""
    zero = like.new_zeros(like.shape[0])
    return Partition(torch.full_like(zero, -math.inf), zero, zero if entropy else None, zero if sum_p2 else None)


def fold(p: Partition, logits_nC: Tensor) -> Partition:
    """The partition after a further chunk of logits. -inf is a token outside the kept set; NaN stays NaN."""
    top = torch.maximum(p.top, logits_nC.amax(1))
    # A row with nothing kept so far has no finite reference; 0 stands in, its exponentials are 0 all the same.
    reference = torch.where(top == -math.inf, torch.zeros_like(top), top)
    z = logits_nC - reference[:, None]
    e = z.exp()
    shrink = (p.top - reference).exp()
    moment, square = p.moment, p.square
    if moment is not None:
        # Moving the reference from m to m' moves (z - m) by (m - m') for all the mass summed so far; nothing summed, nothing moved.
        moved = torch.where(p.total > 0, (p.top - reference) * p.total, torch.zeros_like(top))
        moment = (moment + moved) * shrink + (z.masked_fill_(z == -math.inf, 0.0) * e).sum(1)
    if square is not None:
        square = square * shrink.square() + e.square().sum(1)
    return Partition(top, p.total * shrink + e.sum(1), moment, square)


def kept_mask(kept: KeptSets, rows: slice, low: int, high: int) -> Tensor:
    """Bool[rows, high - low]: which ids of the vocabulary chunk [low, high) are kept at each token of ``rows``."""
    first, last = int(kept.indptr[rows.start]), int(kept.indptr[rows.stop])
    ids = kept.ids[first:last].long()
    row = torch.repeat_interleave(kept.indptr[rows.start : rows.stop + 1].diff())
    inside = (ids >= low) & (ids < high)
    mask = torch.zeros(rows.stop - rows.start, high - low, dtype=torch.bool, device=ids.device)
    mask[row[inside], ids[inside] - low] = True
    return mask


def wide_product(x_nD: Tensor, weight_CD: Tensor) -> Tensor:
    """x @ weight^T, [n, C]; of bfloat16 and float16 in float32, without being rounded on the way.

    A logit of 16 to 32 rounded to bfloat16 is off by up to 1/16: noise that the policy gradient takes for signal (MiniMax-M1, 2025,
    arXiv 2506.13585, computes the head in float32 for that reason). The quickstart in bfloat16 loses its policy to it.
    """
    if x_nD.dtype not in (torch.float16, torch.bfloat16):
        return x_nD @ weight_CD.T
    if x_nD.device.type == "cuda" and "dtype" in torch.ops.aten.mm.overloads():  # torch 2.8: narrow inputs, wide sums, a wide result
        return torch.mm(x_nD, weight_CD.T, out_dtype=torch.float32)
    x = x_nD.float()
    return torch.cat([x @ part.float().T for part in weight_CD.split(VOCAB_CHUNK)], 1)  # never the whole weight a second time


def scaled_logits(hidden_nD: Tensor, weight_CD: Tensor, temperature: float | Tensor, keep_nC: Tensor | None = None) -> Tensor:
    """hidden @ weight^T / temperature, at least float32, -inf outside the kept set. ``temperature`` a number or one a row."""
    logits = wide_product(hidden_nD, weight_CD)
    if isinstance(temperature, Tensor):
        logits.div_(temperature[:, None].to(logits.dtype))
    elif temperature != 1.0:
        logits.div_(temperature)
    return logits if keep_nC is None else logits.masked_fill_(~keep_nC, -math.inf)


@torch.no_grad()
def selected_logprobs(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    kept: KeptSets | None = None,
    entropy: bool = False,
    sum_p2: bool = False,
    row_chunk: int = ROW_CHUNK,
    vocab_chunk: int = VOCAB_CHUNK,
) -> LogProbs:
    """log p(target) per token under softmax(hidden @ weight^T / temperature) over the kept sets; no gradient.

    Shapes: hidden [N, D] (final hidden state at the position *before* each target), weight [V, D], targets int64 [N], temperature
    a number or [N]. Results [N], in the dtype of hidden but at least float32; an empty input gives empty results. A target outside
    its kept set has log-prob -inf, an empty kept set gives NaN. Peak memory is a few row_chunk x vocab_chunk blocks.

    Raises:
        ValueError: a temperature is not positive (greedy decoding has no log-probs), or the kept sets are not one a token.
    """
    n, v = hidden_ND.shape[0], weight_VD.shape[0]
    if not (bool((temperature > 0).all()) if isinstance(temperature, Tensor) else temperature > 0):
        raise ValueError(f"selected_logprobs: temperature = {temperature}; log-probs are defined for temperature > 0")
    if kept is not None and kept.indptr.shape[0] != n + 1:
        raise ValueError(f"selected_logprobs: {kept.indptr.shape[0] - 1} kept sets for {n} tokens; there is one a token")

    dtype = torch.promote_types(hidden_ND.dtype, torch.float32)
    logp = hidden_ND.new_empty(n, dtype=dtype)
    entropy_N = torch.empty_like(logp) if entropy else None
    sum_p2_N = torch.empty_like(logp) if sum_p2 else None
    for a in range(0, n, row_chunk):
        rows = slice(a, min(a + row_chunk, n))
        hidden, target = hidden_ND[rows], targets_N[rows]
        row_temperature = temperature[rows] if isinstance(temperature, Tensor) else temperature
        p = start(logp[rows], entropy=entropy, sum_p2=sum_p2)
        chosen = torch.full_like(p.top, -math.inf)
        for low in range(0, v, vocab_chunk):
            high = min(low + vocab_chunk, v)
            keep = None if kept is None else kept_mask(kept, rows, low, high)
            logits = scaled_logits(hidden, weight_VD[low:high], row_temperature, keep)
            chosen = torch.maximum(chosen, pick(logits, target, low))
            p = fold(p, logits)
        logp[rows] = p.logp(chosen)
        if entropy_N is not None:
            entropy_N[rows] = p.entropy()
        if sum_p2_N is not None:
            sum_p2_N[rows] = p.sum_p2()
    return LogProbs(logp, entropy_N, sum_p2_N)


def pick(x_NC: Tensor, ids_N: Tensor, low: int = 0) -> Tensor:
    """x[i, ids[i] - low], _N: one entry a row, of a chunk whose columns are the ids from ``low`` on; -inf where the id is none of them."""
    inside = (ids_N >= low) & (ids_N < low + x_NC.shape[1])
    picked = x_NC.gather(1, (ids_N - low).clamp(0, x_NC.shape[1] - 1)[:, None])[:, 0]
    return torch.where(inside, picked, -math.inf)


def gather_logp(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    """log softmax(logits)[target] per token, _N, differentiable: for logits that are small enough to exist."""
    return logits_NV.gather(1, targets_N[:, None])[:, 0] - logits_NV.logsumexp(1)
