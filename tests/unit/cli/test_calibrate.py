"""``trimtab calibrate gac`` on the small run, and the thresholds it derives."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from support.cli import cli, untouched
from trimtab.config.load import load
from trimtab.records import TrimtabError
from trimtab.runtime.calibrate import cosines, synchronous, thresholds


def test_thresholds_follow_from_mean_and_spread_within_their_bounds() -> None:
    found = thresholds([0.1, 0.2, 0.3])
    assert (found.mean, found.sd) == (pytest.approx(0.2), pytest.approx(0.1))
    assert (found.c_low, found.c_high) == (pytest.approx(0.4), pytest.approx(0.9))
    assert found.snr == pytest.approx(0.25)  # 0.2 = SNR / (1 + SNR)
    low, high = thresholds([-0.1, -0.1]), thresholds([0.8, 0.9])
    assert (low.c_low, low.c_high, low.snr) == (0.02, pytest.approx(0.52), 0.0)
    assert (high.c_low, high.c_high) == (0.5, 0.95)
    with pytest.raises(TrimtabError, match=r"batches = 1: so few of them gave a cosine; raise --batches"):
        thresholds([0.3])


def test_the_stretch_is_the_run_at_lag_zero_with_a_gac_that_only_measures(home: Path) -> None:
    config = load(str(home / "tiny.toml"), ['methods=["vcpo", { name = "gac", c_low = 0.2, boundary = "batch" }]', "eval.every=2"])
    found = synchronous(config, 5)
    gac = next(m for m in found.chain().methods if m.name == "gac")
    assert gac.options.model_dump().items() >= {"c_low": 0.2, "boundary": "batch", "monitor": True}.items()
    assert found.runtime.model_dump().items() >= {"kind": "lockstep", "lag": 0}.items()
    assert (found.learner.batches, found.eval.every) == (6, 0)
    assert found.learner.optimizer == config.learner.optimizer


@pytest.mark.slow
def test_several_updates_a_batch_give_as_many_pairs_and_across_batches_only_one(home: Path) -> None:
    found = {}
    for boundary in ("update", "batch"):
        methods = f'methods=["vcpo", {{ name = "gac", boundary = "{boundary}" }}]'
        found[boundary] = cosines(load(str(home / "tiny.toml"), [methods, "learner.updates_per_batch=2"]), 8)
    assert 0 < len(found["batch"]) <= 8
    assert set(found["batch"]) < set(found["update"])
    assert all(-1 <= c <= 1 for c in found["update"])


def test_the_command_prints_a_line_for_the_configuration(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    with untouched(home):
        ran = cli("calibrate", "gac", "tiny.toml", "--batches", "4")
    assert ran.code == 0, ran.err
    first, line, caution = ran.out.splitlines()
    assert re.fullmatch(r"[234] cosines of consecutive gradients at lag 0: mean -?\d\.\d{3}, sd \d\.\d{3}", first)
    entry = tomllib.loads(f"x = {line}")["x"]
    load("tiny.toml", [f'methods=["vcpo", {line}]'])
    assert entry["name"] == "gac"
    assert caution.startswith("caution: ")
    again = cli("calibrate", "gac", "tiny.toml", "--batches", "4")
    assert again.out == ran.out  # lockstep: the same numbers


def test_only_gac_is_calibrated(home: Path) -> None:
    ran = cli("calibrate", "zclip", str(home / "tiny.toml"))
    assert (ran.code, ran.out) == (2, "")
    assert "calibrate = 'zclip': there is gac" in ran.err
