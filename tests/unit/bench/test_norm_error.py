"""The error table on a tiny model: what each row is, against one backward a rollout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.updates import make_batch, plain_logps, tiny_model
from trimtab.bench.norm_error import errors


def test_errors_of_a_tiny_model() -> None:
    model = tiny_model()
    batch = make_batch(model, [[1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 1, 1]])
    rows = {row.name: row for row in errors(model, batch.groups)}
    assert list(rows) == ["group mean", "length", "last_layer", "sketch", "sketch of 1", "sketch of 3", "sketch of 7"]

    exact = []
    for r in batch.rollouts:
        (logp,) = plain_logps(model, [r])
        exact.append(float(sum(g.square().sum() for g in torch.autograd.grad(logp.sum(), list(model.parameters())))))
    norm2, length = np.array(exact).reshape(3, 4), np.array([r.actions for r in batch.rollouts]).reshape(3, 4)
    reward = np.array([g.scores for g in batch.groups])
    log_ratio = np.log(length / norm2)
    assert rows["length"].spread == pytest.approx((log_ratio - log_ratio.mean(1, keepdims=True)).std(), rel=1e-5)
    best, by_length = ((w * reward).sum(1) / w.sum(1) for w in (norm2, length))
    assert rows["length"].baseline == pytest.approx(np.abs(by_length - best)[:2].mean(), rel=1e-5)
    assert rows["group mean"].baseline == pytest.approx(np.abs(reward.mean(1) - best)[:2].mean(), rel=1e-5)
    assert rows["sketch of 7"].spread < rows["length"].spread
