"""Two gloo ranks take the step of one process, for every method and bundle (float64)."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.ranks import RUNS, Compared, cases, compare


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
