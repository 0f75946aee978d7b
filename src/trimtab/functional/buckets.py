"""Sums of token columns by age: 0, 1, 2, 3-4, 5-8, 9-16, ... versions."""

from collections.abc import Sequence

import torch
from torch import Tensor

ALL = ""  # the label of all ages together


def label(bucket: int) -> str:
    """The ages in a bucket: ``"0"``, ``"1"``, ``"2"``, ``"3-4"``, ``"5-8"``, ..."""
    return str(bucket) if bucket < 3 else f"{2 ** (bucket - 2) + 1}-{2 ** (bucket - 1)}"


def sums_by_age(columns: Sequence[Tensor], age_N: Tensor) -> dict[str, list[float]]:
    """``[tokens, sum of each column]`` under :data:`ALL` and under each bucket that has tokens; ages below 0 count as 0."""
    bucket_N = torch.where(age_N > 0, age_N.clamp(min=1).double().log2().ceil().long() + 1, 0)
    buckets = int(bucket_N.max()) + 1 if age_N.numel() else 0
    rows = [torch.bincount(bucket_N, x_N.double(), minlength=buckets) for x_N in (torch.ones_like(age_N), *columns)]
    table = torch.stack(rows, 1)
    found = {label(b): row for b, row in enumerate(table.tolist()) if row[0]}
    return {ALL: table.sum(0).tolist(), **found}
