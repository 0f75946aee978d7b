"""A whole small experiment: runs once, goes on, names what breaks, and leaves what a reader needs."""

from __future__ import annotations

import html
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from support import laboratory as small
from support import runs
from trimtab.cli import lab as cli
from trimtab.cli.main import app
from trimtab.lab import laboratory, output, schedule
from trimtab.lab.checks import CheckResult
from trimtab.lab.load import load, shipped
from trimtab.lab.runners import Work, runner
from trimtab.lab.store import Store
from trimtab.records import Json, TrimtabError


@pytest.fixture(autouse=True)
def _reward_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(runs.__file__).parents[1]))


def times(root: Path) -> dict[str, int]:
    return {p.parent.name: p.stat().st_mtime_ns for p in (root / "cells").glob("*/cell.json")}


@pytest.mark.slow
def test_an_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, root = small.experiment(tmp_path), tmp_path / "lab"
    loaded = load(str(path))
    first = small.Watching()
    found = laboratory.run(loaded, root, first, seeds=1, at_once=2)
    assert sorted(first.ran) == ["tis/lag=0 seed 0", "tis/lag=2 seed 0", "vcpo/lag=2 seed 0"]
    assert found.verdict == "reproduced"
    assert not found.missing
    assert len(times(root)) == 3

    # Interrupted: one run is torn in the middle, by a process that is gone. The others are not touched.
    kept = times(root)
    gone = next(job for job in found.jobs if job.name == "vcpo/lag=2 seed 0")
    dead = root / "cells" / f"{gone.key}.part-999999999"
    (root / "cells" / gone.key).rename(dead)
    del kept[gone.key]
    second = small.Watching()
    found = laboratory.run(loaded, root, second, seeds=2, at_once=1)
    assert second.ran == ["vcpo/lag=2 seed 0", "tis/lag=0 seed 1", "tis/lag=2 seed 1", "vcpo/lag=2 seed 1"]
    assert {key: t for key, t in times(root).items() if key in kept} == kept
    assert not dead.exists()
    assert second.left[-1] == 0.0
    assert all(x is not None for x in second.left)
    assert laboratory.run(loaded, root, third := small.Watching(), seeds=2).verdict == "reproduced"
    assert third.ran == []

    # The same process runs one cell after another: a run does not depend on what ran before it.
    metrics = root / "cells" / gone.key / "metrics.jsonl"
    before = runs.lines(metrics)
    shutil.rmtree(metrics.parent)
    fewer = laboratory.run(loaded, root, small.Watching(), seeds=1)
    assert runs.lines(metrics) == before
    assert {fewer.results.seeds(cell.name) for cell in fewer.results.cells} == {2}  # what was run before is not forgotten
    assert sorted(p.name for p in metrics.parent.iterdir()) == [
        "cell.json", "config.json", "config.toml", "eval.jsonl", "events.jsonl", "metrics.jsonl", "summary.json",
    ]  # fmt: skip

    # What a reader gets.
    folder = laboratory.folder(root, "mine")
    page = output.write(found, folder, 2)
    assert {p.name for p in (folder / "figures").iterdir()} == {
        f"{n}.{e}" for n in ("curves", "sweep", "bars", "heat") for e in ("svg", "png")
    }
    text = page.read_text()
    assert text.count("<svg") == 4
    assert "trimtab lab run" in text
    assert loaded.experiment.claim in text
    table = pq.read_table(folder / "results.parquet").to_pylist()
    assert len(table) == 3 * 2 * 2
    assert {row["command"] for row in table if row["cell"] == "tis/lag=2" and row["seed"] == 1} == {
        f"trimtab lab run {path} --seeds 2 --cells tis/lag=2 --lab {root}"
    }
    capsys.readouterr()
    cli.show(str(path), root, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == ["name", "claim", "verdict", "rows", "commit", "wall_s"]
    assert len(shown["rows"]) == 3 * 2
    assert list(shown["rows"][0]) == ["cell", "metric", "mean", "min", "max", "seeds"]
    assert shown["wall_s"] > 0
    row = next(r for r in shown["rows"] if (r["cell"], r["metric"]) == ("tis/lag=0", "mean"))
    assert row["seeds"] == 2
    line = next(line for line in (folder / "table.md").read_text().splitlines() if line.startswith("| `tis/lag=0`"))
    assert "0.250 0.350" in line
    assert f"{row['mean'] - 0.3:+.3f}" in line

    # --cells and --again: that cell only, run again.
    again = small.Watching()
    laboratory.run(loaded, root, again, seeds=1, only="tis/*=0", again=True)
    assert again.ran == ["tis/lag=0 seed 0"]
    with pytest.raises(TrimtabError, match="no cell is called so; there are tis/lag=0"):
        laboratory.run(loaded, root, again, only="tos*")

    # A spent budget starts nothing, and says what is missing.
    found = laboratory.run(loaded, root, small.Watching(), seeds=3, budget_s=0.0)
    assert found.stopped == "the budget is spent"
    assert [job.name for job in found.missing] == ["tis/lag=0 seed 2", "tis/lag=2 seed 2", "vcpo/lag=2 seed 2"]
    assert "3 of 9 runs are missing" not in output.provisional(found)
    assert output.as_json(found, 3)["missing"] == [job.name for job in found.missing]


@pytest.mark.slow
def test_what_breaks_is_named_and_the_rest_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_runner_of_lab.py").write_text(
        "import os\n"
        "from trimtab.lab.runners import train\n"
        "from trimtab.records import TrimtabError\n"
        "def run(work, tell):\n"
        "    if work.config.seed == 1: raise TrimtabError('seed 1 is unlucky')\n"
        "    if work.config.seed == 2: raise ValueError('seed 2 is worse')\n"
        "    if work.config.seed == 3: os._exit(7)\n"
        "    train(work, tell)\n"
        "    work.leave({'twice': 2.0 * work.options['x']})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = small.EXPERIMENT.replace("[base]", 'runner = "my_runner_of_lab:run"\noptions = { x = 4 }\n[base]').replace(
        "values = [0, 2]", "values = [2]"
    )
    text = text.replace("[[checks]]", 'twice = { kind = "value", key = "twice" }\n[[checks]]', 1).replace(
        '"tis/lag=0" = [0.25, 0.35], ', ""
    )
    loaded = load(str(small.experiment(tmp_path, text)))
    watching = small.Watching()
    found = laboratory.run(loaded, tmp_path / "lab", watching, seeds=5, only="tis*")
    assert watching.ran == ["tis/lag=2 seed 0", "tis/lag=2 seed 4"]
    assert [why.partition(" (see")[0] for why in watching.failed.values()] == [
        "seed 1 is unlucky", "ValueError: seed 2 is worse", "its process ended with exit code 7",
    ]  # fmt: skip
    kept = Path(found.broken["tis/lag=2 seed 2"].partition("(see ")[2].rstrip(")"))
    assert "ValueError: seed 2 is worse" in (kept / schedule.OUTPUT).read_text()
    assert found.results.by_seed("tis/lag=2", "twice") == {0: 8.0, 4: 8.0}


def test_commands_have_what_the_asked_for_one_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small.experiment(tmp_path)

    def said(lab: str, cells: str, seeds: int | None, jobs: int) -> str:
        code = cli.run_experiment("mine.toml", Path(lab), seeds=seeds, jobs=jobs, budget_minutes=0, smoke=False, cells=cells, again=False)
        assert code == 0
        return next(line for line in capsys.readouterr().out.splitlines() if "go on with" in line).partition("go on with: ")[2]

    assert said("my lab", "tis/*", 1, 2) == "trimtab lab run mine.toml --seeds 1 --cells 'tis/*' --jobs 2 --lab 'my lab'"
    shown = json.loads((tmp_path / "my lab" / "mine" / "results.json").read_text())
    assert shown["command"] == "trimtab lab run mine.toml --seeds 1 --lab 'my lab'"
    assert said("runs/lab", "*", None, 1) == "trimtab lab run mine.toml"


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("nowhere/mine.toml", r"file = 'nowhere/mine\.toml': it cannot be written \(No such file or directory\); choose another place"),
        ("collapse.toml", "the name collapse ships with Trimtab and owns its results; choose another"),
        ("cells.toml", "cells is a folder of the laboratory itself; choose another"),
        ("mine.txt", r"an experiment is a \.toml file"),
    ],
)
def test_where_a_copy_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, sentence: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrimtabError, match=sentence):
        cli.copy("ablation", Path(target))
    assert list(tmp_path.iterdir()) == []


def test_values_are_left(tmp_path: Path) -> None:
    config = runs.config(tmp_path, ["vcpo"])
    Work(config, {}, tmp_path).leave({"a": 1.5})
    assert json.loads((tmp_path / "values.json").read_text()) == {"a": 1.5}


def test_a_smoke_page_judges_nothing(tmp_path: Path) -> None:
    """Issue 9.8: its checks stood there as "yes" and "no", of a few batches."""
    loaded = load("collapse")
    found = laboratory.collect(loaded, laboratory.plan(loaded, smoke=True), Store(tmp_path), smoke=True)
    says = [check.says for check in loaded.experiment.checks]
    for state in ("holds", "fails"):
        results = [CheckResult(text, state, False, False, ()) for text in says]
        page = output.write(replace(found, findings=results), tmp_path / state, None)
        text = page.read_text()
        assert text.count('<span class="smoke">smoke:</span>') == len(says)
        assert 'class="yes"' not in text
        assert 'class="no"' not in text
        assert "<strong>not judged (a smoke run: a few batches, numbers mean nothing)</strong>" in text
        assert page.with_name("table.md").read_text().count("* smoke: ") == len(says)
        assert {f["state"] for f in json.loads(page.with_name("results.json").read_text())["checks"]} == {"smoke"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", shipped())
def test_smoke(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_experiment(name, tmp_path, seeds=None, jobs=1, budget_minutes=15, smoke=True, cells="*", again=False) == 0
    page = tmp_path / "smoke" / name / "index.html"
    assert page.exists()
    said = capsys.readouterr().out
    assert f"{name}: not judged (a smoke run" in said
    assert "missing" not in said
    late = "method/median_clip/clipped"  # the clip acts when it has seen 20 steps
    assert "no run so far has method/" not in said.replace(f"no run so far has {late}", "")
    assert load(name).experiment.claim[:20] in page.read_text()
    assert f"The same for all arms: {load(name).experiment.same}." in html.unescape(page.read_text())


@pytest.mark.slow
def test_a_copy_with_one_switch_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    mine = Path("mine.toml")
    cli.copy("ablation", mine)
    text = mine.read_text()
    mine.write_text(
        text.replace('methods = ["seq_tis", "grpo", "ess"]', 'methods = ["seq_tis", "grpo", { name = "ess", rule = "linear" }]')
    )
    assert mine.read_text() != text
    mine.write_text(mine.read_text().replace('metric = "ess/ratio", label = "lowest', 'metric = "method/ess/nonsense", label = "lowest'))
    cli.run_experiment("mine.toml", Path("lab"), seeds=None, jobs=1, budget_minutes=5, smoke=True, cells="ess/*", again=False)
    assert Path("lab/smoke/mine/figures/accuracy.png").exists()
    assert "warning measures.ess: no run so far has method/ess/nonsense" in capsys.readouterr().out
    with pytest.raises(TrimtabError, match="exists already"):
        cli.copy("ablation", mine)
    with pytest.raises(TrimtabError, match="ships with Trimtab"):
        cli.copy("ablation", Path("collapse.toml"))
    with pytest.raises(TrimtabError, match=r"make them with `trimtab lab run mine\.toml --lab lab`"):
        cli.show("mine.toml", Path("lab"), as_json=False)


@pytest.mark.slow
def test_a_switch_goes_on_from_the_same_weights(tmp_path: Path) -> None:
    lockstep = {"kind": "lockstep", "lag": 1}
    whole = runs.config(tmp_path, ["vcpo"], runtime=lockstep, learner={"batches": 4})
    tables: list[list[dict[str, Json]]] = []
    for name, before in (("same", {"learner": {"batches": 2}}), ("other", {"learner": {"batches": 2, "optimizer": {"lr": 0.05}}})):
        (tmp_path / name).mkdir()
        told: list[int] = []
        runner("switch")(Work(whole, {"before": before}, tmp_path / name), told.append)
        assert told == [1, 2, 3, 4]
        assert json.loads((tmp_path / name / "config.json").read_text())["learner"]["optimizer"]["lr"] == whole.learner.optimizer.lr
        tables.append(runs.lines(tmp_path / name / "metrics.jsonl"))
    runs.train(whole, tmp_path / "whole")
    learned = [_without_pool(rows) for rows in (*tables, runs.lines(tmp_path / "whole" / "metrics.jsonl"))]
    assert learned[0][:2] == learned[2][:2]
    assert learned[0][:1] != learned[1][:1]
    rates = [[m["step/lr"] for m in rows] for rows in learned]
    assert rates == [[runs.LR] * 4, [0.05, 0.05, runs.LR, runs.LR], [runs.LR] * 4]
    assert [m["age/max"] for m in learned[0]] == [0.0, 1.0, 0.0, 1.0]  # the pipeline is filled anew
    with pytest.raises(TrimtabError, match=r"options\.before"):
        runner("switch")(Work(whole, {}, tmp_path / "none"), told.append)


def _without_pool(rows: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Metrics of learning: what waits, runs and was judged since the last batch depends on how many batches are planned."""
    apart = ("pool/", "outcome/")
    return [{k: v for k, v in cast("dict[str, Json]", row["metrics"]).items() if not k.startswith(apart)} for row in rows]


def test_the_command(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["lab", "list", "--markdown", "--lab", str(tmp_path)])
    assert shown.exit_code == 0
    assert [line.split(" | ")[0].strip("| ") for line in shown.output.splitlines()[2:]] == shipped()
    asked = CliRunner().invoke(app, ["lab", "show", "collapse", "--lab", str(tmp_path)])
    assert isinstance(asked.exception, TrimtabError)
    assert "trimtab lab run collapse" in str(asked.exception)
