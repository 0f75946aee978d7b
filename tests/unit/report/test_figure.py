"""The comparison figure, and the drawing helpers that must not lie about the data."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.records import TrimtabError
from trimtab.report import style
from trimtab.report.figure import comparison_figure
from trimtab.report.runfiles import load, number, pair


def test_the_comparison_names_every_run_and_every_panel(runs, tmp_path):
    png, svg = tmp_path / "headline.png", tmp_path / "headline.svg"
    comparison_figure({"sync": runs / "healthy", "tis": runs / "collapsed"}, png, svg, "Stale rollouts, lag 64")
    drawn = svg.read_text()
    for words in ("Stale rollouts, lag 64", "Reward", "Effective sample size", "KL between sampler and learner", "sync 0.9", "tis 0.0"):
        assert words in drawn
    assert png.read_bytes().startswith(b"\x89PNG")
    assert png.stat().st_size > 30_000


def test_a_run_without_lag_has_kl_zero_and_is_still_drawn(runs, tmp_path):
    sync = tmp_path / "sync"
    sync.mkdir()
    rows = "".join(f'{{"batch": {b}, "metrics": {{"kl/k3": [0.0, 10], "ess/ratio": 1.0, "reward/mean": [1, 2]}}}}\n' for b in range(30))
    (sync / "metrics.jsonl").write_text(rows)
    comparison_figure({"sync": sync, "tis": runs / "collapsed"}, tmp_path / "f.png", tmp_path / "f.svg", "t")
    assert (tmp_path / "f.svg").read_text().count("sync ") == 3


def test_nothing_to_compare_is_one_sentence(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(TrimtabError, match="none of the runs sync recorded a batch"):
        comparison_figure({"sync": tmp_path / "empty"}, tmp_path / "f.png", tmp_path / "f.svg", "t")


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_keeps_ends_and_extremes(values, points):
    y = np.array(values)
    x = np.arange(len(y), dtype=float)
    tx, ty = style.thin(x, y, points)
    assert len(tx) <= max(points, 4)
    assert (tx[0], tx[-1]) == (x[0], x[-1])
    assert (ty.min(), ty.max()) == (y.min(), y.max())
    assert all(y[int(a)] == b for a, b in zip(tx, ty, strict=True))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40), st.integers(1, 12))
def test_smoothing_looks_only_back(values, window):
    y = np.array(values)
    got = style.smooth(y, window)
    assert got == pytest.approx([np.mean(y[max(0, i - window + 1) : i + 1]) for i in range(len(y))], abs=1e-9)
    assert style.smooth(y, window, log=True)[-1] == np.median(y[-window:])


def test_rates_are_read_as_quotients_and_pooled_by_denominators(tmp_path):
    assert pair([3, 4]) == (3, 4)
    assert number([3, 4]) == 0.75
    assert [number(x) for x in (2, None, [1, 0], [None, 2], "x", True, [1, 2, 3])] == [2.0, *[None] * 6]
    rows = ['{"batch": 0, "metrics": {"x": [1, 1]}}', '{"batch": 1, "metrics": {"x": [0, 9]}}', '{"batch": 0, "metrics": {"x": [1, 2]}}']
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows))
    run = load(tmp_path, "run")
    assert run.series("x")[1].tolist() == [0.5, 0.0]  # of two records of one batch the later one counts
    assert run.total("x") == (1, 11)
    assert run.mean("x") == pytest.approx(1 / 11)
