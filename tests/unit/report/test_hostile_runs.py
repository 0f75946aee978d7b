"""Run folders with numbers that no figure can have and names that no page should obey: the page is made, and says what it left out."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.report.build import build_report
from trimtab.report.runfiles import Run, load

EVIL = "a$\\frac{$ [red]b[/x] <i>\x1b[2J\u202e"
VALUES = {
    "inf": "Infinity",
    "minus inf": "-Infinity",
    "nan": "NaN",
    "1e308": "1e308",
    "-1e308": "-1e308",
    "400 digits": "9" * 400,
    "overflow": "1e999",
    "largest": "1e100",
    "smallest": "5e-324",
    "null": "null",
}


def spoil(path: Path, every: int, change: Callable[[dict[str, object]], None]) -> None:
    """Change every so many rows of a log; the mark @X@ stands for a bare value, which ``json.dumps`` would not write."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[::every]:
        change(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def put(folder: Path, value: str) -> None:
    for path in folder.glob("*.jsonl"):
        path.write_text(path.read_text().replace('"@X@"', value))


def copy(runs: Path, to: Path) -> Path:
    return Path(shutil.copytree(runs / "healthy", to))


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_whatever_a_metric_is_the_page_is_made(runs: Path, tmp_path: Path, value: str, every: int) -> None:
    run = copy(runs, tmp_path / "run")

    def everywhere(row: dict[str, object]) -> None:
        for name, children in row.items():
            if isinstance(children, dict):
                row[name] = {k: dict.fromkeys(v, "@X@") if isinstance(v, dict) else "@X@" for k, v in children.items()}

    spoil(run / "metrics.jsonl", every, everywhere)
    spoil(run / "timeline.jsonl", every, lambda row: row.update(end="@X@"))
    spoil(run / "eval.jsonl", every, lambda row: row.update(accuracy="@X@", accuracy_low="@X@", score="@X@", length="@X@"))
    spoil(run / "decisions.jsonl", every, lambda row: row.update(amount="@X@"))
    put(run, value)
    page = build_report([run], tmp_path / "one.html").read_text(encoding="utf-8")
    build_report([run, runs / "collapsed"], tmp_path / "two.html")
    assert "nan" not in re.findall(r' d="([^"]*)"', page)
    assert not re.search(r' d="[^"]*(nan|inf)', page)
    told = re.search(r"Not finite, or too large to mean anything, and left out: ([^<]*)\.", page)
    assert (told is None) == (value in ("1e100", "5e-324"))
    if told is not None:
        batches = len((run / "metrics.jsonl").read_text().splitlines()[::every])
        assert f"reward/mean in {batches} batches" in told[1]


def test_what_is_left_out_is_counted_and_the_rest_is_drawn(runs: Path, tmp_path: Path) -> None:
    run = copy(runs, tmp_path / "run")
    whole: Run = load(run, "whole")
    spoil(run / "metrics.jsonl", 50, lambda row: row["metrics"].update({"grad/raw_norm": "@X@", "reward/mean": ["@X@", 64]}))  # type: ignore[attr-defined]
    put(run, "1e308")
    found = load(run, "spoiled")
    assert found.unreadable == {"grad/raw_norm": 3, "reward/mean": 3}
    assert whole.unreadable == {}
    assert [
        len(whole.series("grad/raw_norm")[1]) - len(found.series("grad/raw_norm")[1]),
        found.series("grad/raw_norm")[1].max() < 1e3,
    ] == [3, True]


def test_a_rate_over_nothing_is_no_fault(runs: Path, tmp_path: Path) -> None:
    run = copy(runs, tmp_path / "run")
    spoil(run / "metrics.jsonl", 1, lambda row: row["metrics"].update({"entropy/mean": [0.0, 0.0]}))  # type: ignore[attr-defined]
    assert load(run, "run").unreadable == {}


def test_ages_that_no_run_has(runs: Path, tmp_path: Path) -> None:
    run = copy(runs, tmp_path / "run")
    spoil(run / "metrics.jsonl", 1, lambda row: row.update(ages={"²": 1, "9" * 30: 1, "-1": 2, "3": 4}, by_age={"²": {"tokens": 1}}))
    build_report([run], tmp_path / "page.html")


@pytest.mark.parametrize("summary", [{"wall_s": 1e308}, {"mean_age": 1e300}, {"batches": 10**400}, {"max_age": 10**400}, {"reason": EVIL}])
def test_a_summary_that_no_run_writes(runs: Path, tmp_path: Path, summary: dict[str, object]) -> None:
    run = copy(runs, tmp_path / "run")
    path = run / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "stopped"} | summary))
    build_report([run], tmp_path / "page.html")


def test_names_are_names(runs: Path, tmp_path: Path) -> None:
    """Two dollar signs are no formula, brackets no markup, an escape sequence is spelled out; on the page and in its figures."""
    odd = EVIL.replace("/", "|")
    run = copy(runs, tmp_path / odd)
    spoil(run / "events.jsonl", 1, lambda row: row.update(message=EVIL, evidence={EVIL: EVIL}))
    spoil(run / "decisions.jsonl", 1, lambda row: row.update(why=EVIL, method=EVIL))
    spoil(run / "timeline.jsonl", 1, lambda row: row.update(who=f"worker {EVIL}", what=EVIL))
    (run / "config.toml").write_text("a = 1\n# " + EVIL + "\nb = 2\n")
    for folders in ([run], [run, runs / "collapsed"]):
        page = build_report(folders, tmp_path / "page.html").read_text(encoding="utf-8")
        assert not [c for c in page if not c.isprintable() and c != "\n"]
        seen = r"a$\frac{$ [red]b[/x] &lt;i&gt;\x1b[2J\u202e"
        assert page.count(seen.replace("/", "|")) >= 2
        assert f"worker {seen}" in page.partition("Who did what, when")[2]
        assert seen in page.partition("<h2>Events</h2>")[2]
        assert f"a = 1\n# {seen}\nb = 2\n" in page
