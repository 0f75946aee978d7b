"""Teacher-forced log-probs of recorded segments, through the same forward and the same distribution as sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from trimtab.engines import forward
from trimtab.functional.distribution import Knobs, dense, kept_set, log_probs, tempered
from trimtab.records import F32, Segment

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM

_LOGITS = 1 << 24  # elements of one block of logits


@torch.inference_mode()
def score(model: Qwen2ForCausalLM, segments: Sequence[Segment]) -> list[F32]:
    """Log-probs of the action tokens of each segment under ``model`` and the segment's own sampling, in order of position.

    Recorded kept sets are used as they are; where a cut distribution was recorded without them, the cut is made again.
    """
    device, vocabulary = model.lm_head.weight.device, model.config.vocab_size
    out: list[F32] = [np.zeros(0, np.float32)] * len(segments)
    for chunk in forward.run(model, [s.tokens for s in segments], keep=False):
        for row, i in enumerate(chunk.index):
            segment = segments[i]
            where = torch.from_numpy(np.flatnonzero(segment.action_mask)).to(device)
            token_N = torch.from_numpy(segment.tokens[segment.action_mask].astype(np.int64)).to(device)
            parts = []
            for block in torch.arange(len(where), device=device).split(max(1, _LOGITS // vocabulary)):
                hidden = chunk.hidden[row, where[block] - 1]
                knobs = Knobs.of([segment.sampling] * len(block), vocabulary, device)
                z_NxV = tempered(model.lm_head(hidden), knobs.temperature_N)
                kept_NxV = kept_set(z_NxV, knobs) if segment.kept is None else dense(segment.kept, vocabulary, device)[block]
                parts.append(log_probs(z_NxV, kept_NxV).gather(-1, token_N[block, None])[:, 0])
            if parts:
                out[i] = torch.cat(parts).float().cpu().numpy()
    return out
