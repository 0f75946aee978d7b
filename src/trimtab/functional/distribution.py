r"""The distribution tokens are sampled from: one definition, read by the engine that samples and by the learner that scores.

For logits :math:`z` of one position and a :class:`~trimtab.records.Sampling`:

1. :math:`z \leftarrow z / \text{temperature}`, in float32 at least;
2. the **kept set** is cut: ``allowed`` ids only; of those the ``top_k`` most probable; of those, renormalized, the smallest set
   in order of falling probability whose mass reaches ``top_p``. Equal probabilities are ordered by token id;
3. :math:`\log \pi(v) = z_v - \operatorname{logsumexp}_{w \in \text{kept}} z_w` for kept ids, :math:`-\infty` elsewhere.

The recorded ``behavior_logp`` is :math:`\log\pi` of the sampled token. To score a token under other weights, step 2 is not run
again: the recorded kept set is part of the data (a ratio compares two distributions over the same support).

**From a uniform to a token** (inverse CDF): walk the vocabulary in order of token id, add up the probabilities in float64, and
take the first id whose cumulative mass exceeds ``u`` times the total::

    mass = logp.double().exp()
    cdf = mass.cumsum(-1)
    token = first id with  mass > 0  and  cdf > u * (cdf[-1] * (1 - 2**-52))

The last factor keeps the threshold below the total whatever the rounding, so that there always is such an id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trimtab.records import Kept, Sampling, TrimtabError


def check_sampling(sampling: Sampling, vocabulary: int) -> None:
    """Refuse a sampling that defines no distribution over ``vocabulary`` ids: raises ``TrimtabError`` naming the field."""
    if not 0.0 < sampling.temperature < float("inf"):
        raise TrimtabError.field("temperature", sampling.temperature, "it divides the logits, give a positive number")
    if not 0.0 < sampling.top_p <= 1.0:
        raise TrimtabError.field("top_p", sampling.top_p, "it is the probability mass kept, give a number in (0, 1]")
    if sampling.top_k < 0:
        raise TrimtabError.field("top_k", sampling.top_k, "give the number of tokens kept, or 0 to keep all")
    if sampling.allowed is not None and not (sampling.allowed and min(sampling.allowed) >= 0 and max(sampling.allowed) < vocabulary):
        raise TrimtabError.field("allowed", sampling.allowed, f"give at least one token id, all within the vocabulary of {vocabulary}")


_BELOW_ONE = 1.0 - 2.0**-52  # so that rounding of u * total never reaches the total


@dataclass(frozen=True, slots=True)
class Knobs:
    """The sampling parameters of N rows as tensors. What no row uses is None."""

    temperature_N: Tensor
    top_k_N: Tensor | None
    top_p_N: Tensor | None
    allowed_NxV: Tensor | None

    @classmethod
    def of(cls, samplings: Sequence[Sampling], vocabulary: int, device: torch.device | str = "cpu") -> Knobs:
        allowed_NxV = None
        if any(s.allowed is not None for s in samplings):
            allowed_NxV = torch.ones(len(samplings), vocabulary, dtype=torch.bool, device=device)
            for row, s in enumerate(samplings):
                if s.allowed is not None:
                    allowed_NxV[row] = False
                    allowed_NxV[row, list(s.allowed)] = True
        top_k = [s.top_k or vocabulary for s in samplings]
        top_p = [s.top_p for s in samplings]
        return cls(
            torch.tensor([s.temperature for s in samplings], dtype=torch.float64, device=device),
            torch.tensor(top_k, device=device) if min(top_k, default=vocabulary) < vocabulary else None,
            torch.tensor(top_p, dtype=torch.float64, device=device) if min(top_p, default=1.0) < 1.0 else None,
            allowed_NxV,
        )


def tempered(logits_NxV: Tensor, temperature_N: Tensor) -> Tensor:
    """Step 1: logits / temperature, in float32 or, where the logits are, float64."""
    wide = logits_NxV if logits_NxV.dtype == torch.float64 else logits_NxV.float()
    return wide / temperature_N.to(wide.dtype).unsqueeze(-1)


def kept_set(z_NxV: Tensor, knobs: Knobs) -> Tensor | None:
    """Step 2, on tempered logits: bool ``NxV``, or None where no row is cut."""
    kept = knobs.allowed_NxV
    if knobs.top_k_N is None and knobs.top_p_N is None:
        return kept
    z_NxV = z_NxV if kept is None else z_NxV.masked_fill(~kept, float("-inf"))
    z_sorted, ids = z_NxV.sort(dim=-1, descending=True, stable=True)
    keep_sorted = z_sorted > float("-inf")
    if knobs.top_k_N is not None:
        keep_sorted &= torch.arange(z_NxV.shape[-1], device=z_NxV.device) < knobs.top_k_N.unsqueeze(-1)
    if knobs.top_p_N is not None:
        mass = z_sorted.masked_fill(~keep_sorted, float("-inf")).double().softmax(-1)
        before = mass.cumsum(-1) - mass
        # The first token has no mass before it, so one is always kept; top_p = 1 keeps all whatever the rounding of the sum.
        top_p = knobs.top_p_N.unsqueeze(-1)
        keep_sorted &= (before < top_p) | (top_p >= 1.0)
    return torch.zeros_like(keep_sorted).scatter_(-1, ids, keep_sorted)


def log_probs(z_NxV: Tensor, kept_NxV: Tensor | None = None) -> Tensor:
    """Step 3, on tempered logits: log-probabilities of every token, ``NxV``; -inf outside the kept set."""
    return (z_NxV if kept_NxV is None else z_NxV.masked_fill(~kept_NxV, float("-inf"))).log_softmax(-1)


def sample(logp_NxV: Tensor, u_N: Tensor) -> Tensor:
    """Tokens by inverse CDF (see the module's text), int64 ``N``. ``u_N``: float64 uniforms in [0, 1)."""
    mass = logp_NxV.double().exp()
    cdf = mass.cumsum(-1)
    total = cdf[..., -1]
    if cdf.device.type != "cpu":
        # A parallel scan may round one sum above or below its neighbor: let no token without mass be found.
        cdf = cdf.where(mass > 0, 0.0)
        total = cdf.amax(-1)
    threshold = u_N * (total * _BELOW_ONE)
    return (cdf > threshold.unsqueeze(-1)).view(torch.uint8).argmax(-1)


def ragged(kept_NxV: Tensor) -> Kept:
    """Kept sets of N tokens, dense to ragged; ids rise within a set."""
    kept = kept_NxV.cpu().numpy()
    indptr = np.zeros(len(kept) + 1, np.int64)
    np.cumsum(kept.sum(-1), out=indptr[1:])
    return Kept(indptr=indptr, ids=np.nonzero(kept)[1].astype(np.int32))


def dense(kept: Kept, vocabulary: int, device: torch.device | str = "cpu") -> Tensor:
    """Kept sets of N tokens, ragged to dense: bool ``NxV``. Ids that are not below ``vocabulary`` are left out."""
    rows = np.repeat(np.arange(len(kept.indptr) - 1), np.diff(kept.indptr))
    out = torch.zeros(len(kept.indptr) - 1, vocabulary, dtype=torch.bool)
    inside = kept.ids < vocabulary
    out[torch.from_numpy(rows[inside]), torch.from_numpy(kept.ids[inside].astype(np.int64))] = True
    return out.to(device)
