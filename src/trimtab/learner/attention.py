"""Attention over packed segments, registered with transformers: causal SDPA on rectangular blocks, never a total x total mask.

The block layout travels through the keyword arguments of the model's forward (``layout=``). Without one, the model attends as
it does under ``sdpa``, so a model set to this implementation still generates and evaluates as usual.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from trimtab.learner.layout import BlockLayout
from trimtab.records import TrimtabError

NAME = "trimtab_packed"


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    layout: BlockLayout | None = None,
    **kwargs: object,
) -> tuple[Tensor, Tensor | None]:
    """query [1, heads, rows, d], key and value [1, kv_heads, rows, d] -> ([1, rows, heads, d], None)."""
    if layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)  # type: ignore[arg-type]
    grouped = query.shape[1] != key.shape[1]
    packed = [layout.split(x[0].transpose(0, 1)) for x in (query, key, value)]
    blocks = []
    for q, k, v in zip(*packed, strict=True):
        y = scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, scale=scaling, enable_gqa=grouped
        )
        blocks.append(y.transpose(1, 2))
    return layout.join(blocks)[None], None


def attend_packed(model: PreTrainedModel) -> None:
    """Make ``model`` attend with :func:`packed_attention`.

    Raises:
        TrimtabError: a layer attends through a sliding window, or attention has dropout.
    """
    config = model.config
    if sliding := [i for i, kind in enumerate(config.layer_types) if kind != "full_attention"]:
        raise TrimtabError.field(
            "config.layer_types",
            config.layer_types[sliding[0]],
            f"layer {sliding[0]} is not full attention; set use_sliding_window = false",
        )
    if config.attention_dropout > 0:
        raise TrimtabError.field("config.attention_dropout", config.attention_dropout, "log-probs must be deterministic; set it to 0")
    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def hidden_states(model: PreTrainedModel, tokens_P: Tensor, positions_P: Tensor, layout: BlockLayout) -> Tensor:
    """Final hidden states of packed rows, [rows, d]. An explicit mapping of masks keeps transformers from building one."""
    output = model.base_model(
        input_ids=tokens_P[None],
        position_ids=positions_P[None],
        attention_mask={"full_attention": None},
        use_cache=False,
        layout=layout,
    )
    return cast(torch.Tensor, output.last_hidden_state)[0]
