"""The methods' benchmark has a case for every registered method and charges what it says."""

from __future__ import annotations

import pytest

from trimtab.bench import bench_methods
from trimtab.bench.bench_methods import CRITIC, PLAIN, CpuMeter
from trimtab.bench.bench_norms import Size, model_of
from trimtab.bench.pool_cost import pooled
from trimtab.control.points import Point
from trimtab.control.registry import build, method_class, names
from trimtab.learner.gradient import CosineSketch

SMALL = Size("tiny", 16, 1, 25, 16)


def test_every_method_has_a_case() -> None:
    cases = {case.name: case for case in bench_methods.cases()}
    pool = {name for name in names() if set(method_class(name).points()) <= {Point.ACCEPT, Point.SELECT}}
    assert set(names()) - pool <= set(cases)
    assert all(case.over in (PLAIN, CRITIC) for case in cases.values())
    assert {"ess", "gac", "copc", "sketch", "opob", "four/copc", "four/vcpo"} <= set(cases)
    assert cases["opob"].whole, "norms are not in its calls"
    assert not cases["gac"].whole


@pytest.mark.parametrize("name", [n for n in names() if method_class(n).points()[0] in (Point.ACCEPT, Point.SELECT)])
def test_methods_of_the_pool_are_timed_on_their_own(name: str) -> None:
    seconds = pooled(name, 24, 2)
    assert len(seconds) == 2
    assert all(s > 0 for s in seconds)


def test_a_meter_counts_the_time_inside_calls_alone() -> None:
    method, meter = build("norm_clip", {}), CpuMeter()
    meter.watch(method)
    assert meter.seconds == 0.0
    sum(range(100_000))
    assert meter.seconds == 0.0
    assert meter.wrap(lambda n: sum(range(n)))(100_000) == sum(range(100_000))
    assert meter.seconds > 0.0


@pytest.mark.slow
def test_rows() -> None:
    wanted = ["ess", "gac", "opob", "copc", "four/copc", "four", "pace"]
    rows = {row.case: row for row in bench_methods.run(rounds=4, size=SMALL, only=wanted)}
    assert set(rows) == set(wanted)
    assert all(row.ratio > 0.5 for row in rows.values())
    parameters = sum(p.numel() for p in model_of(SMALL).parameters())
    assert rows["gac"].bytes_added == 4 * parameters + 24 - 4 * CosineSketch.COLUMNS, "a copy of the gradient instead of its sketch"
    assert rows["ess"].bytes_added < 100
    assert rows["opob"].peak_added > 0
    assert rows["four"].ratio == rows["four/copc"].ratio
