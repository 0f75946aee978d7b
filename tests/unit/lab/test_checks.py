"""Verdicts: comparisons of cells and constants, by mean and by seed, and what follows from them."""

from __future__ import annotations

import math

import pytest

from trimtab.lab.checks import Bound, Check, CheckResult, verdict
from trimtab.lab.results import CellName, Results

CELLS = [CellName(arm, {"lag": lag}, arm) for lag in (0, 64) for arm in ("tis", "vcpo", "b0")]
FINAL = {
    "tis/lag=0": [0.90, 0.95, 0.97],
    "vcpo/lag=0": [0.94, 0.94, 0.94],
    "tis/lag=64": [0.10, 0.05, 0.60],
    "vcpo/lag=64": [0.95, 0.90, 0.70],
    "b0/lag=64": [0.80, 0.99, 0.96],
}
RESULTS = Results(CELLS, ["final"], {(cell, seed): {"final": x} for cell, values in FINAL.items() for seed, x in enumerate(values)})


def holds(**check: object) -> bool | None:
    return Check.model_validate({"says": "", "measure": "final", **check}).of(RESULTS).holds


@pytest.mark.parametrize(
    ("check", "wanted"),
    [
        ({"arm": "vcpo", "at_least": 0.8}, True),
        ({"arm": "vcpo", "at_least": 0.9}, False),  # at lag 64 the mean is 0.85
        ({"arm": "vcpo", "at": {"lag": 0}, "at_least": 0.9}, True),
        ({"arm": "vcpo", "at_least": 0.9, "cells": "any"}, True),
        ({"arm": "tis", "at": {"lag": 64}, "at_most": {"arm": "vcpo", "factor": 0.5}}, True),
        ({"arm": "tis", "at": {"lag": 64}, "at_most": {"arm": "vcpo", "factor": 0.5}, "over": "every seed"}, False),  # 0.60 > 0.35
        ({"arm": "tis", "at": {"lag": 64}, "at_most": {"arm": "vcpo", "factor": 0.5}, "over": "most seeds"}, True),
        ({"arm": "vcpo", "at": {"lag": 64}, "at_least": {"at": {"lag": 0}, "plus": -0.1}}, True),
        ({"arm": "vcpo", "at": {"lag": 64}, "at_least": {"at": {"lag": 0}, "plus": -0.08}}, False),
        ({"arm": "vcpo", "at": {"lag": 64}, "at_least": {"arm": "tis", "at": {"lag": 0}, "plus": -0.1}}, True),
        ({"arm": "vcpo", "at": {"lag": 64}, "at_least": {"arm": ["tis", "b0"], "take": "worst"}}, True),
        ({"arm": "vcpo", "at": {"lag": 64}, "at_least": {"arm": ["tis", "b0"], "take": "best"}}, False),
        ({"arm": "b0", "at_least": 0.5}, None),  # lag 0 has no run
        ({"arm": "b0", "at_least": 0.99}, False),  # whatever lag 0 will be
        ({"arm": "b0", "at_least": 0.5, "cells": "any"}, True),
        ({"arm": "b0", "at_least": 0.95, "cells": "any"}, None),
        ({"arm": "tis", "at": {"lag": 0}, "at_most": {"arm": "b0"}}, None),
    ],
)
def test_check(check: dict[str, object], wanted: bool | None) -> None:
    assert holds(**check) is wanted


def test_the_best_arm_is_one_of_all() -> None:
    assert Bound(arm="*").cells("tis", {"lag": 64}, RESULTS) == ["tis/lag=64", "vcpo/lag=64", "b0/lag=64"]
    assert holds(arm="tis", at={"lag": 64}, at_most={"arm": "*", "factor": 0.28}) is True  # mean 0.25; best mean b0 0.9167
    assert holds(arm="tis", at={"lag": 64}, at_most={"arm": "*", "factor": 0.27}) is False


def test_what_is_compared_is_told() -> None:
    found = Check.model_validate({"says": "s", "measure": "final", "arm": "vcpo", "at": {"lag": 64}, "at_least": 0.9}).of(RESULTS)
    assert found.compared == ("vcpo/lag=64: 0.85 is not >= 0.9",)


def test_nan_is_no_number() -> None:
    results = Results(CELLS[:1], ["final"], {("tis/lag=0", 0): {"final": math.nan}})
    assert results.rows()[0].seeds == 0


# Batches at which three seeds reached something: tis once, vcpo twice, b0 never; opob has not been run.
REACHED = {"tis": [70.0, math.nan, math.nan], "vcpo": [30.0, 40.0, math.nan], "b0": [math.nan] * 3}
MOMENTS = Results(
    [CellName(arm, {}, arm) for arm in (*REACHED, "opob")],
    ["reached"],
    {(arm, seed): {"reached": x} for arm, values in REACHED.items() for seed, x in enumerate(values)},
)


@pytest.mark.parametrize(
    ("check", "state"),
    [
        ({"arm": "vcpo", "at_most": 50}, "fails"),  # one never does, so the others do not pass for all
        ({"arm": "vcpo", "at_most": 50, "never": "late"}, "fails"),
        ({"arm": "vcpo", "at_most": 50, "never": "late", "over": "most seeds"}, "holds"),
        ({"arm": "vcpo", "at_most": 50, "never": "left out"}, "holds"),
        ({"arm": "vcpo", "at_most": 50, "never": "left out", "over": "every seed"}, "holds"),
        ({"arm": "vcpo", "at_most": {"arm": "tis"}, "never": "late", "over": "every seed"}, "fails"),  # neither came: not early
        ({"arm": "vcpo", "at_most": {"arm": "tis"}, "never": "late", "over": "most seeds"}, "holds"),
        ({"arm": "tis", "at_least": {"arm": "vcpo"}, "never": "late", "over": "every seed"}, "holds"),
        ({"arm": "vcpo", "at_most": {"arm": "b0"}, "never": "late", "over": "most seeds"}, "holds"),
        ({"arm": "vcpo", "at_most": {"arm": "b0"}}, "fails"),
        ({"arm": "b0", "at_most": 50}, "fails"),
        ({"arm": "b0", "at_most": 50, "never": "left out"}, "no case"),
        ({"arm": ["b0", "tis"], "at_most": 80, "never": "left out"}, "holds"),
        ({"arm": "opob", "at_most": 50, "never": "left out"}, "not run"),
        ({"arm": "vcpo", "at_most": {"arm": "opob"}}, "not run"),
    ],
)
def test_what_never_came(check: dict[str, object], state: str) -> None:
    assert Check.model_validate({"says": "", "measure": "reached", **check}).of(MOMENTS).state == state


def test_a_mean_of_fewer_seeds_says_so() -> None:
    found = Check.model_validate({"says": "", "measure": "reached", "arm": "vcpo", "at_most": 50, "never": "left out"}).of(MOMENTS)
    assert found.compared == ("vcpo: 2 of 3 seeds have it, 35 <= 50",)
    found = Check.model_validate({"says": "", "measure": "reached", "arm": "b0", "at_most": 50}).of(MOMENTS)
    assert found.compared == ("b0: 0 of 3 seeds have it, never is not <= 50",)


def claim(holds: bool | None, control: bool = False, decisive: bool = False) -> CheckResult:
    return CheckResult("", "not run" if holds is None else "holds" if holds else "fails", control, decisive, ())


NO_CASE = CheckResult("", "no case", False, False, ())


@pytest.mark.parametrize(
    ("findings", "wanted"),
    [
        ([claim(True), claim(True)], "reproduced"),
        ([claim(True), claim(False)], "partly"),
        ([claim(False), claim(False)], "not reproduced at this scale"),
        ([claim(True), claim(None)], "not judged"),
        ([claim(True, control=True), claim(True)], "reproduced"),
        ([claim(True, control=True), claim(False)], "not reproduced at this scale"),
        ([claim(False, control=True), claim(True)], "not judged"),  # the experiment could not show it
        ([claim(True), claim(False, decisive=True), claim(True)], "not reproduced at this scale"),
        ([claim(True, decisive=True), claim(False)], "partly"),
        ([claim(True), NO_CASE], "reproduced"),
        ([claim(False), NO_CASE], "not reproduced at this scale"),
        ([NO_CASE], "not judged"),
        ([], "not judged"),
    ],
)
def test_verdict(findings: list[CheckResult], wanted: str) -> None:
    assert verdict(findings) == wanted


def test_rows() -> None:
    row = next(r for r in RESULTS.rows() if r.cell == "vcpo/lag=64")
    assert (row.metric, row.mean, row.min, row.max, row.seeds) == ("final", pytest.approx(0.85), 0.70, 0.95, 3)
