"""The digest that replicas compare before a publication is committed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """BLAKE2b (128 bits, hex) of names, dtypes, shapes and bytes, in order of name. Does not depend on device or memory layout."""
    import torch

    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
