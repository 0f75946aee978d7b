"""GAC's control: the share it skips, the same draws again, nothing but whole steps left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from trimtab.control.protocol import Gradient, Keep, Skip
from trimtab.methods.random_skip import RandomSkip, RandomSkipOptions


def verdicts(rate: float, seed: int = 0, batches: int = 500, updates: int = 4) -> list[bool]:
    method = RandomSkip(RandomSkipOptions(rate=rate, seed=seed))
    recorder = SimpleNamespace(metric=lambda name, numerator, denominator=1.0: None)
    out = []
    for batch in range(batches):
        for update in range(updates):
            g = cast(Gradient, SimpleNamespace(batch_id=batch, mini_step=update, recorder=recorder))
            verdict = method.gradient(g)
            assert isinstance(verdict, Keep | Skip)
            out.append(isinstance(verdict, Skip))
    return out


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8])
def test_share(rate: float) -> None:
    found = verdicts(rate)
    assert sum(found) / len(found) == pytest.approx(rate, abs=4 * (rate * (1 - rate) / len(found)) ** 0.5 + 1e-12)


def test_draws_belong_to_batch_and_update() -> None:
    assert verdicts(0.5) == verdicts(0.5)
    assert verdicts(0.5) != verdicts(0.5, seed=1)
    assert verdicts(0.5, batches=10) == verdicts(0.5)[:40]
