"""The rollout benchmark delivers every token on both sides and reports what it measured."""

import pytest

from trimtab.bench import bench_rollout


@pytest.mark.slow
def test_rows() -> None:
    ours, theirs = bench_rollout.run(rounds=1)
    assert (ours.case, theirs.case) == ("torch/512", "generate/512")
    assert ours.ratio == pytest.approx(theirs.cpu_s / ours.cpu_s)
    assert theirs.ratio == 1.0
    assert ours.ratio > 1.2  # far below what it is worth, far above a mistake
