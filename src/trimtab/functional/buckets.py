"""Sums of token columns by age: 0, 1, 2, 3-4, 5-8, 9-16, ... versions."""

from collections.abc import Sequence

import torch
from torch import Tensor

ALL = ""  # the label of all ages together
_LARGEST = [0, *(2**b for b in range(32))]  # the largest age of each bucket


def label(bucket: int) -> str:
    """The ages in a bucket: ``"0"``, ``"1"``, ``"2"``, ``"3-4"``, ``"5-8"``, ..."""
    return str(bucket) if bucket < 3 else f"{2 ** (bucket - 2) + 1}-{2 ** (bucket - 1)}"


def sums_by_age(columns: Sequence[Tensor], age_N: Tensor) -> dict[str, list[float]]:
    """``[tokens, sum of each column]`` under :data:`ALL` and under each bucket that has tokens; ages below 0 count as 0."""
    bucket_N = torch.bucketize(age_N, torch.tensor(_LARGEST, device=age_N.device))
    tokens = torch.bincount(bucket_N)
    table = torch.stack([tokens, *(torch.bincount(bucket_N, x_N, minlength=len(tokens)) for x_N in columns)], 1)
    found = {label(b): row for b, row in enumerate(table.tolist()) if row[0]}
    return {ALL: [sum(x) for x in zip(*found.values(), strict=True)] or [0.0] * table.shape[1], **found}
