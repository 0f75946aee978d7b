"""Keys and values: the slot cache, and the attention functions that fill and read it from inside the transformers model.

The model runs unchanged. One function is registered with transformers' ``AttentionInterface``; it hands each layer's query, key
and value to the ``kv`` object that the engine passed to the forward:

* :class:`Prefill` -- whole sequences, padded on the right: causal attention, and on request the keys are kept;
* :class:`Decode`  -- one token a row: its key goes to the row's place in the slot cache, its query reads the row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM

IMPLEMENTATION = "trimtab_slots"


class Attend(Protocol):
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Shapes: query ``[n, heads, T, D]``, key and value ``[n, kv_heads, T, D]`` -> ``[n, T, heads, D]``."""
        ...


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: None, scaling: float, *, kv: Attend, **_: object
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
        kv_heads = config.num_key_value_heads or config.num_attention_heads
        self._allocate([config.num_hidden_layers, 2, slots, kv_heads, 64, head], dtype, device)

    def _allocate(self, shape: list[int], dtype: torch.dtype, device: torch.device) -> None:
        # Zeros, not garbage: masked positions get probability 0, and 0 * NaN would be NaN.
        self.data = torch.zeros(shape, dtype=dtype, device=device)
        self.device = device
        _, _, slots, self.kv_heads, self.capacity, _ = shape
        # Of each layer, keys and values as [slots * kv_heads, capacity, D] to read and as [places, D] to write ...
        self.read = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in self.data]
        self.write = [(keys.flatten(0, 2), values.flatten(0, 2)) for keys, values in self.data]
        # ... and the first place of each of its rows.
        self.first = np.arange(slots * self.kv_heads) * self.capacity
        self.steps = torch.zeros(2 * self.capacity, dtype=dtype, device=device)
        self.steps[self.capacity :] = float("-inf")

    def ensure(self, length: int) -> None:
        """Make room for rows of ``length`` positions."""
        if length > self.capacity:
            old, shape = self.data, list(self.data.shape)
            shape[4] = max(length, 2 * self.capacity)
            self._allocate(shape, old.dtype, old.device)
            self.data[:, :, :, :, : old.shape[4]] = old

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

    def __init__(self, cache: SlotCache, position_n: npt.NDArray[np.int64]) -> None:
        self._cache, self._width = cache, int(position_n.max()) + 1
        cache.ensure(self._width)
        position_h = position_n.repeat(cache.kv_heads)  # of each row and key head
        self._heads = len(position_h)
        self._place = torch.from_numpy(cache.first[: self._heads] + position_h).to(cache.device)
        # The mask of a row is a window of (0, 0, ..., -inf, -inf, ...): the first -inf falls on the position after the row's own.
        windows = cache.steps.unfold(0, self._width, 1)
        self._bias = windows[torch.from_numpy(cache.capacity - 1 - position_h).to(cache.device)].unsqueeze(1)
        # With a single query torch's fused kernel is slower on a CPU than two products; narrow floats need its wide sums.
        self._fused = cache.data.dtype == torch.bfloat16 or cache.device.type != "cpu"

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        n, size = query.shape[0], query.shape[3]
        keys, values = self._cache.write[layer]
        keys.index_copy_(0, self._place, key.reshape(-1, size))
        values.index_copy_(0, self._place, value.reshape(-1, size))
        keys, values = self._cache.read[layer]
        keys, values = keys[: self._heads, : self._width], values[: self._heads, : self._width]
        # Query heads that share a key head stand where query positions would: no key is repeated.
        shared = query.reshape(self._heads, -1, size)
        if self._fused:
            out = scaled_dot_product_attention(shared, keys, values, attn_mask=self._bias, scale=scale)
        else:
            out = torch.bmm(torch.baddbmm(self._bias, shared, keys.mT, alpha=scale).softmax(-1), values)
        return out.reshape(n, 1, -1, size)
