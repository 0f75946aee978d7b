"""Keys and values: the slot cache, and the attention functions that fill and read it from inside the transformers model.

The model runs unchanged. One function is registered with transformers' ``AttentionInterface``; it hands each layer's query, key
and value to the ``kv`` object that the engine passed to the forward:

* :class:`Prefill` -- whole sequences, padded on the right: causal attention, and on request the keys are kept;
* :class:`Decode`  -- one token a row: its key goes to the row's place in the slot cache, its query reads the row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM

IMPLEMENTATION = "trimtab_slots"
# A mapping as attention mask tells the model that masks are made: it then builds none of its own.
NO_MASK = {"full_attention": None}


class Attend(Protocol):
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Shapes: query ``[n, heads, T, D]``, key and value ``[n, kv_heads, T, D]`` -> ``[n, T, heads, D]``."""
        ...


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, scaling: float, *, kv: Attend, **_: object
) -> tuple[Tensor, None]:
    layer = module.layer_idx
    assert isinstance(layer, int)
    return kv.attend(layer, query, key, value, scaling), None


def install(model: Qwen2ForCausalLM) -> None:
    """Make ``model`` attend through the ``kv`` object given to its forward."""
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, _attention)
    model.set_attn_implementation(IMPLEMENTATION)


class Prefill:
    """Causal attention over right-padded sequences. With ``keep``, :meth:`keys` returns what was computed."""

    def __init__(self, keep: bool) -> None:
        self._layers: list[Tensor] | None = [] if keep else None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if self._layers is not None:
            self._layers.append(torch.stack((key, value)))
        gqa = query.shape[1] != key.shape[1]
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=gqa).transpose(1, 2)

    def keys(self) -> Tensor:
        """``[layers, 2, n, kv_heads, T, D]``."""
        assert self._layers is not None
        return torch.stack(self._layers)


class SlotCache:
    """``[layers, 2, slots, kv_heads, capacity, D]``: the keys and values of every row, position by position.

    ``capacity`` grows by doubling; rows ``0 .. n-1`` are the live ones, so that decoding reads plain slices.
    """

    def __init__(self, model: Qwen2ForCausalLM, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        config = model.config
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, 2, slots, config.num_key_value_heads, 64, head)
        # Zeros, not garbage: masked positions get probability 0, and 0 * NaN would be NaN.
        self.data = torch.zeros(shape, dtype=dtype, device=device)

    def ensure(self, length: int) -> None:
        """Make room for rows of ``length`` positions."""
        capacity = self.data.shape[4]
        if length > capacity:
            shape = list(self.data.shape)
            shape[4] = max(length, 2 * capacity)
            grown = self.data.new_zeros(shape)
            grown[:, :, :, :, :capacity] = self.data
            self.data = grown

    def put(self, slot: int, keys: Tensor) -> None:
        """Write the first positions of a row: ``keys`` is ``[layers, 2, kv_heads, T, D]``."""
        self.ensure(keys.shape[3])
        self.data[:, :, slot, :, : keys.shape[3]] = keys

    def move(self, source: int, target: int, length: int) -> None:
        self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]

    def clear(self) -> None:
        self.data.zero_()


class Decode:
    """One token for each of the first ``n`` rows, the i-th at ``position_n[i]``; reads up to the longest live row."""

    def __init__(self, cache: SlotCache, position_n: Tensor, width: int) -> None:
        self._data = cache.data
        self._position_n = position_n
        self._row_n = torch.arange(len(position_n), device=position_n.device)
        self._width = width
        beyond = torch.arange(width, device=position_n.device) > position_n[:, None]
        self._bias = torch.zeros(beyond.shape, dtype=cache.data.dtype, device=position_n.device).masked_fill_(beyond, float("-inf"))[
            :, None, None
        ]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        n, kv_heads, _, size = key.shape
        keys, values = self._data[layer, 0, :n], self._data[layer, 1, :n]
        keys[self._row_n, :, self._position_n] = key[:, :, 0]
        values[self._row_n, :, self._position_n] = value[:, :, 0]
        # Query heads that share a key head stand where query positions would: no key is repeated.
        shared = query.reshape(n, kv_heads, -1, size)
        keys, values = keys[:, :, : self._width], values[:, :, : self._width]
        return scaled_dot_product_attention(shared, keys, values, attn_mask=self._bias, scale=scale).reshape(n, 1, -1, size)
