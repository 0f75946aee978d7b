"""Tokens through the model's own layers; whole sequences in padded chunks of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from trimtab.engines.kv import Attend, Prefill
from trimtab.engines.vocabulary import Vocabulary
from trimtab.functional.logprobs import wide_product
from trimtab.records import I32

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM

CHUNK_TOKENS = 4096  # padded tokens of one forward: bounds its activations


class Forward:
    """The body of ``Qwen2Model.forward`` without its wrappers, masks and caches, which cost an eighth of a small model's decode step.

    The rotary embedding of every position below ``context`` is computed once, by the model's own module. ``vocabulary``: one more
    than the highest id that can be sampled.
    """

    def __init__(self, model: Qwen2ForCausalLM, context: int, ids: Vocabulary) -> None:
        self._body, self._head, self._ids = model.model, model.lm_head, ids
        self.vocabulary, self.device = ids.size, model.lm_head.weight.device
        with torch.inference_mode():
            cos, sin = self._body.rotary_emb(model.lm_head.weight, torch.arange(context, device=self.device)[None])
        self._cos, self._sin = cos[0], sin[0]

    def hidden(self, tokens: Tensor, positions: Tensor, kv: Attend) -> Tensor:
        """Final hidden states ``[n, T, hidden]`` of tokens ``[n, T]`` at ``positions`` (``[n, T]`` or ``[1, T]``)."""
        hidden = self._body.embed_tokens(tokens)
        rotary = self._cos[positions], self._sin[positions]
        for layer in self._body.layers:
            hidden = layer(hidden, position_embeddings=rotary, kv=kv)
        return self._body.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """``[n, vocabulary]`` of final hidden states ``[n, hidden]``, float32 at least; -inf for ids that the tokenizer does not have."""
        return self._ids.cut(wide_product(hidden, self._head.weight[: self.vocabulary]))

    def sequences(self, sequences: Sequence[I32]) -> Iterator[tuple[int, Tensor]]:
        """Forward ``sequences`` (none empty) from their first token: their indices and hidden states ``[T, hidden]``, longest first."""
        for index, hidden, _ in self._chunks(sequences, keep=False):
            for row, i in enumerate(index):
                yield i, hidden[row, : len(sequences[i])]

    def keys(self, sequences: Sequence[I32]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Likewise, with their keys and values, ``[layers, 2, kv_heads, T, D]``."""
        for index, hidden, kv in self._chunks(sequences, keep=True):
            keys = kv.keys()
            for row, i in enumerate(index):
                yield i, hidden[row, : len(sequences[i])], keys[:, :, row, :, : len(sequences[i])]

    def _chunks(self, sequences: Sequence[I32], keep: bool) -> Iterator[tuple[list[int], Tensor, Prefill]]:
        """Chunks of similar length, padded on the right: which sequences, their hidden states ``[n, T, hidden]``, and the attention."""
        lengths = [len(s) for s in sequences]
        order = sorted(range(len(sequences)), key=lambda i: -lengths[i])
        while order:
            width = lengths[order[0]]
            n = max(1, CHUNK_TOKENS // width)
            index, order = order[:n], order[n:]
            tokens = np.zeros((len(index), width), np.int64)
            for row, i in enumerate(index):
                tokens[row, : lengths[i]] = sequences[i]
            kv = Prefill(keep)
            yield index, self.hidden(torch.from_numpy(tokens).to(self.device), torch.arange(width, device=self.device)[None], kv), kv
