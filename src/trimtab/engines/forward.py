"""Whole sequences through the model, in padded chunks of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trimtab.engines.kv import NO_MASK, Prefill
from trimtab.records import I32

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM

CHUNK_TOKENS = 4096  # padded tokens of one forward: bounds its activations


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some of the sequences, padded on the right to the longest: ``index`` says which, ``hidden`` is ``[n, T, hidden]``."""

    index: npt.NDArray[np.int64]
    hidden: Tensor
    kv: Prefill


@torch.inference_mode()
def run(model: Qwen2ForCausalLM, sequences: Sequence[I32], keep: bool) -> Iterator[Chunk]:
    """Forward ``sequences`` (none empty) from their first token, longest first. ``keep``: keep the keys and values."""
    lengths = np.array([len(s) for s in sequences])
    order = np.argsort(-lengths, kind="stable")
    device = model.lm_head.weight.device
    at = 0
    while at < len(order):
        width = int(lengths[order[at]])
        index = order[at : at + max(1, CHUNK_TOKENS // width)]
        at += len(index)
        tokens = np.zeros((len(index), width), np.int64)
        for row, i in enumerate(index):
            tokens[row, : lengths[i]] = sequences[i]
        kv = Prefill(keep)
        hidden = model.model(
            input_ids=torch.from_numpy(tokens).to(device), attention_mask=NO_MASK, use_cache=False, kv=kv
        ).last_hidden_state
        yield Chunk(index, hidden, kv)
