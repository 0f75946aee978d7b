"""Two ranks take the step of one process: as threads, a few chains and their gradients; over gloo, every method and bundle (float64)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from support.ranks import RUNS, Compared, cases, compare
from support.threads import Meeting, Threads
from support.updates import MIXED, make_batch, make_learner, tiny_model, worst


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("methods", [["seq_tis", "grpo"], ["vcpo"], ["copc"]], ids=["tis", "vcpo", "copc"])
def test_gradients_of_two_ranks_add_up_to_that_of_one(methods: list[Any], run: str) -> None:
    model = tiny_model()
    batches = [make_batch(model, MIXED, seed=i, number=i) for i in range(2)]

    def seen(rank: int, meeting: Meeting) -> list[list[Tensor]]:
        learner, capture = make_learner(model, methods, **RUNS[run], optimizer={"lr": 1e-3})
        learner._tools.ranks = Threads(rank, meeting)
        assert all(r.applied for b in batches for r in learner.train(b))
        return capture.seen

    alone, meeting = seen(0, Meeting(1)), Meeting(2)
    with ThreadPoolExecutor(2) as pool:
        ranks = [f.result() for f in [pool.submit(seen, rank, meeting) for rank in range(2)]]
    for found in ranks:
        assert max(worst(got, want) for got, want in zip(found, alone, strict=True)) < 1e-9


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[Compared]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    return compare(cases(), folder)


@pytest.mark.slow
def test_every_method_is_the_same_on_two_ranks(compared: list[Compared]) -> None:
    assert {(c.method, c.run) for c in compared} == {(m, r) for m in cases() for r in RUNS}
    apart = [c for c in compared if not (c.verdicts and c.weights < 1e-10 and c.metrics < 1e-6)]
    assert not apart, "\n".join(map(str, apart))
    # The comparison is about steps that were taken.
    still = [c for c in compared if c.steps == 0]
    assert not still, "\n".join(map(str, still))
