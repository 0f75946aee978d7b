"""Teacher-forced log-probs of recorded segments, through the same forward and the same distribution as sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trimtab.engines.forward import Forward
from trimtab.functional.distribution import Knobs, dense, kept_set, log_probs, tempered
from trimtab.functional.logprobs import pick
from trimtab.records import F32, I32, Kept, Sampling, Segment

_LOGITS = 1 << 24  # elements of one block of logits


@torch.inference_mode()
def score(forward: Forward, segments: Sequence[Segment]) -> list[F32]:
    """Log-probs of the action tokens of each segment under the weights of ``forward`` and the segment's own sampling, in order of position.

    Recorded kept sets are used as they are; where a cut distribution was recorded without them, the cut is made again.
    """
    out: list[F32] = [np.zeros(0, np.float32)] * len(segments)
    for i, hidden_TxD in forward.sequences([s.tokens for s in segments]):
        segment = segments[i]
        where = torch.from_numpy(np.flatnonzero(segment.action_mask)).to(forward.device)
        out[i] = said(forward, hidden_TxD, where, segment.tokens[segment.action_mask], segment.sampling, segment.kept)
    return out


def said(forward: Forward, hidden_TxD: Tensor, where_N: Tensor, tokens_N: I32, sampling: Sampling, kept: Kept | None) -> F32:
    """Log-probs of the tokens at the positions ``where_N``, each from the hidden state of the position before.

    -inf for an id that cannot be sampled.
    """
    device, vocabulary = forward.device, forward.vocabulary
    token_N = torch.from_numpy(tokens_N.astype(np.int64)).to(device)
    parts = []
    for block in torch.arange(len(where_N), device=device).split(max(1, _LOGITS // vocabulary)):
        knobs = Knobs.of([sampling] * len(block), vocabulary, device)
        z_NxV = tempered(forward.logits(hidden_TxD[where_N[block] - 1]), knobs.temperature_N)
        kept_NxV = kept_set(z_NxV, knobs) if kept is None else dense(kept, vocabulary, device)[block]
        parts.append(pick(log_probs(z_NxV, kept_NxV), token_N[block]))
    return torch.cat(parts).float().cpu().numpy()
