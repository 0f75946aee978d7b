"""What each command says and does, on one small run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from support import rewards
from support.cli import cli, tree, untouched
from trimtab.cli.progress import Progress
from trimtab.config.load import load
from trimtab.control.registry import names
from trimtab.methods.catalogue import BUNDLES
from trimtab.store import checkpoint
from trimtab.store.run_folder import RunFolder
from trimtab.telemetry.metrics import BatchRecord

from .conftest import BATCHES, Finished


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


# ----------------------------------------------------------------------------------------------------------------------- train


def test_train_leaves_a_whole_run_folder_and_says_where(finished: Finished) -> None:
    assert finished.ran.code == 0
    s = summary(finished.run)
    assert set(s) >= {
        "accuracy_before", "accuracy_after", "batches", "applied", "skipped", "max_age", "mean_age", "spanning_rollouts",
        "wall_s", "cpu_s", "methods", "seed", "status",
    }  # fmt: skip
    assert (s["status"], s["batches"], s["applied"] + s["skipped"], s["max_age"]) == ("done", BATCHES, BATCHES, 2)
    assert s["methods"] == ["seq_tis", "opob", "linear", "norm_clip", "ess"]
    for file in (
        "model/model.safetensors",
        "report.html",
        "config.toml",
        "config.json",
        "metrics.jsonl",
        "checkpoints/000006/manifest.json",
    ):
        assert (finished.run / file).is_file()
        if file.startswith(("model", "report")):
            assert str(Path("runs/done") / file.partition("/")[0]) in finished.ran.out
    assert "held-out accuracy" in finished.ran.out
    assert "runs/done: lockstep, 6 batches, methods seq_tis, opob, linear, norm_clip, ess" in finished.ran.err
    assert re.search(r"batch 6/6  reward .*ESS/B .*KL .*cosine .*age .*tokens/s .*left 0:00", finished.ran.err)


def test_the_version_rises_with_applied_batches_and_with_nothing_else(finished: Finished) -> None:
    rows = records(finished.run)
    assert {r["applied"] for r in rows} == {True, False}
    assert [r["version"] for r in rows] == [sum(r["applied"] for r in rows[: i + 1]) for i in range(len(rows))]
    assert all(r["applied"] or r["reason"] == "no_signal: every coefficient is zero" for r in rows)


def test_a_name_that_is_taken_gets_the_next_number(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished.home)
    shutil.copy(finished.file, finished.home / "again.toml")
    with untouched(finished.run):
        for want in ("runs/run", "runs/run-2"):
            assert f"report  {want}/report.html" in cli("train", "again.toml", "learner.batches=1").out
    assert summary(finished.home / "runs" / "run-2")["batches"] == 1


def test_sync_is_lockstep_at_lag_zero(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished.home)
    assert cli("train", "tiny.toml", "--sync", "name=sync", "learner.batches=2").code == 0
    assert summary(finished.home / "runs" / "sync")["max_age"] == 0
    runtime = json.loads((finished.home / "runs" / "sync" / "config.json").read_text())["runtime"]
    assert {key: runtime[key] for key in ("kind", "lag", "swap_every", "surplus")} == {
        "kind": "lockstep",
        "lag": 0,
        "swap_every": 0,
        "surplus": 0.0,
    }


def test_a_dry_run_tells_plan_memory_and_ceiling_and_writes_nothing(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished.home)
    with untouched(finished.home):
        ran = cli("train", "tiny.toml", "--dry-run")
    assert ran.code == 0
    for said in (
        "plan: 6 batches of 4 prompts x 4 rollouts, at most 8 new tokens each",
        "lockstep: lag 2",
        "chain: weigh: seq_tis(c=8.0)",
        "step: ess(rule=sqrt, ",
        "prompts: the longest of ",
        "memory: cpu: ",
        "cpu: learner (weights, gradient, AdamW moments)",
        "cpu: activations of a micro-batch ",
        "keys and values of ",
        " in all): fits",
        " tokens/s sampled (16 rows together), ",
        "asynchronous ceiling (g + t) / max(g / workers, t) = ",
        "6 batches take at most about ",
    ):
        assert said in ran.out


# ---------------------------------------------------------------------------------------------------------------------- resume


def test_a_finished_run_is_trained_longer(finished: Finished, tmp_path: Path) -> None:
    run = tmp_path / "longer"
    shutil.copytree(finished.run, run)
    assert cli("resume", run, "batches=8", "store.keep=5").code == 0
    assert (summary(run)["batches"], summary(run)["status"]) == (8, "done")
    saved = json.loads((run / "config.json").read_text())
    assert (saved["learner"]["batches"], saved["store"]["keep"]) == (8, 5)
    assert load(str(run / "config.toml")).learner.batches == 8
    assert [r["batch"] for r in records(run)] == list(range(8))
    assert "8 of 8 updates identical; weights " in cli("replay", run).out


def test_a_finished_run_resumed_as_it_is_stays_what_it_is(finished: Finished, tmp_path: Path) -> None:
    run = tmp_path / "same"
    shutil.copytree(finished.run, run)
    before = tree(run)
    assert cli("resume", run).code == 0
    after = tree(run)
    for file in ("model/model.safetensors", "metrics.jsonl", "config.json"):
        assert after[file] == before[file]
    a, b = json.loads(before["summary.json"]), json.loads(after["summary.json"])
    assert {k: v for k, v in a.items() if k not in ("wall_s", "cpu_s")} == {k: v for k, v in b.items() if k not in ("wall_s", "cpu_s")}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_checkpointed_and_goes_on(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Exit code 130; the resumed run ends in the weights of the run that was not interrupted."""
    monkeypatch.chdir(finished.home)
    real = Progress.batch

    def batch(self: Progress, record: BatchRecord, waiting_for: str) -> None:
        real(self, record, waiting_for)
        if record.batch == 2:
            os.kill(os.getpid(), number)

    name = f"stopped-{number.name}"
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "batch", batch)
        ran = cli("train", "tiny.toml", f"name={name}")
    assert (ran.code, ran.out) == (130, f"interrupted after 3 batches and checkpointed; go on with: trimtab resume runs/{name}\n")
    run = finished.home / "runs" / name
    assert (summary(run)["status"], summary(run)["batches"]) == ("interrupted", 3)
    assert cli("resume", f"runs/{name}").code == 0
    assert (run / "model" / "model.safetensors").read_bytes() == (finished.run / "model" / "model.safetensors").read_bytes()


# ---------------------------------------------------------------------------------------------------------------- looking at runs


def test_show_prints_rollouts_with_score_outcome_and_ages(finished: Finished) -> None:
    ran = cli("show", finished.run, "--batch", "3", "--limit", "3")
    assert ran.code == 0
    assert f"batch 3, trained at version {records(finished.run)[2]['version']}" in ran.out
    heads = re.findall(r"slot \(0, \d+\) row \d+ member \d  score [01]  (correct|wrong)  (eos|length)", ran.out)
    assert len(heads) == 3
    ages = re.findall(r"age of each token: (\d+) x(\d+)", ran.out)
    assert len(ages) == 3
    assert all(int(age) <= 2 and int(tokens) <= 8 for age, tokens in ages)
    only = cli("show", finished.run, "--outcome", "wrong", "--limit", "100")
    assert "batch 5, trained at version" in only.out  # the last one
    assert "  wrong  " in only.out
    assert "  correct  " not in only.out


def test_show_of_a_batch_that_is_not_there(finished: Finished) -> None:
    ran = cli("show", finished.run, "--batch", "99")
    assert (ran.code, ran.sentence) == (2, f"batch = 99: {finished.run} has no rollouts of it on record; leave it out for the last one")


def test_report_of_one_run_and_of_several(finished: Finished, tmp_path: Path) -> None:
    one = cli("report", finished.run, "--out", tmp_path / "one.html")
    assert (one.code, one.out.strip()) == (0, str(tmp_path / "one.html"))
    two = cli("report", finished.run, finished.run, "--out", tmp_path / "two.html")
    assert two.code == 0
    assert (tmp_path / "two.html").stat().st_size > 10_000
    for out in ("one.html", "two.html"):
        assert "http://" not in (tmp_path / out).read_text().replace("http://www.w3.org", "")


def test_replay_finds_every_update_identical(finished: Finished) -> None:
    with untouched(finished.run):
        ran = cli("replay", finished.run)
    assert ran.code == 0
    assert re.fullmatch(r"6 of 6 updates identical; weights [0-9a-f]{16}, as the run's own\n", ran.out)
    assert re.fullmatch(r"2 of 2 updates identical; weights [0-9a-f]{16}\n", cli("replay", finished.run, "--batches", "2").out)


def test_replay_says_where_an_update_is_another(finished: Finished, tmp_path: Path) -> None:
    run = tmp_path / "other"
    shutil.copytree(finished.run, run)
    table = json.loads((run / "config.json").read_text())
    table["learner"]["optimizer"]["lr"] *= 2
    (run / "config.json").write_text(json.dumps(table))
    ran = cli("replay", run)
    assert ran.code == 3
    first = next(r["batch"] for r in records(run) if r["applied"])
    assert re.search(r"batch \d: gradient norm [\d.]+, recorded [\d.]+", ran.out)
    assert not any(f"batch {n}: " in ran.out for n in range(first + 1))
    assert ", the run's own are " in ran.out


def test_replay_without_recorded_rollouts(finished: Finished, tmp_path: Path) -> None:
    run = tmp_path / "bare"
    shutil.copytree(finished.run, run)
    shutil.rmtree(run / "rollouts")
    (run / "rollouts").mkdir()
    ran = cli("replay", run)
    assert (ran.code, ran.sentence) == (2, f"{run} has logged no rollouts yet: nothing to replay")


def test_eval_of_a_run_is_the_runs_own_evaluation(finished: Finished) -> None:
    ran = cli("eval", finished.run, "--json")
    assert ran.code == 0
    found = json.loads(ran.out)
    assert found["accuracy"] == summary(finished.run)["accuracy_after"]
    assert found["rows"] == 8
    assert sum(found["outcomes"].values()) == 8
    before = json.loads(cli("eval", finished.file, "--json").out)
    assert before["accuracy"] == summary(finished.run)["accuracy_before"]
    other = cli("eval", finished.run, "--model", finished.home / "model")
    interval = f"[{before['accuracy_low']:.3f}, {before['accuracy_high']:.3f}]"
    assert f"{finished.home / 'model'}: held-out accuracy {before['accuracy']:.3f} {interval} on 8 prompts" in other.out


def test_eval_of_a_run_that_has_not_ended(finished: Finished, tmp_path: Path) -> None:
    run = tmp_path / "open"
    shutil.copytree(finished.run, run)
    shutil.rmtree(run / "model")
    ran = cli("eval", run)
    remedy = f"make one with `trimtab export {run}` and name it with --model"
    assert (ran.code, ran.sentence) == (2, f"run = {str(run)!r}: it has not ended, so it has no model folder; {remedy}")


@pytest.mark.parametrize("command", ["show", "report", "replay", "resume"])
def test_a_folder_that_is_no_run(command: str, tmp_path: Path) -> None:
    ran = cli(command, tmp_path)
    assert ran.code == 2
    assert ran.sentence.startswith(f"run folder {tmp_path} holds no run (it has no config.json)")


# ------------------------------------------------------------------------------------------------------------------------ catalog


def test_methods_as_json() -> None:
    ran = cli("methods", "--json")
    rows = json.loads(ran.out)["methods"]
    assert [r["name"] for r in rows] == names()
    fields = "name points summary formula source status needs corrects cost fails docs code defaults options"
    assert all(set(r) == set(fields.split()) for r in rows)
    by_name = {r["name"]: r for r in rows}
    assert by_name["opob"]["points"] == ["credit"]
    assert by_name["seq_tis"]["defaults"] == {"c": 8.0}
    (c,) = by_name["seq_tis"]["options"]
    assert c == {"name": "c", "default": 8.0, "choices": [], "description": "cap on the ratio; 8 in VCPO's recipes, 2 in veRL"}
    (std,) = by_name["grpo"]["options"]
    assert std["choices"] == ["group", "population", "batch", "none"]
    assert by_name["opob"]["needs"] == ["SEQ_NORMS"]
    assert by_name["seq_tis"]["corrects"] == ["current/behavior"]
    assert by_name["ess"]["points"] == ["step"]
    assert by_name["b0"]["status"] == "control"
    assert json.loads(cli("methods", "opob", "--json").out)["methods"] == [by_name["opob"]]


def test_methods_for_people() -> None:
    every = cli("methods").out.splitlines()
    wide = max(map(len, [*names(), *BUNDLES]))
    for name in names():
        (line,) = [each for each in every if each.startswith(f"  {name:<{wide}}  ")]
        assert line[wide + 4 :].split("  ")[0] in ("published", "our reading", "control")
    points = [line.partition(":")[0] for line in every if line[:1].isalpha() and ": " in line]
    assert points[:8] == ["accept", "select", "shape", "weigh", "credit", "objective", "gradient", "step"]
    assert f"  {'vcpo':<{wide}}  seq_tis(c=8.0), opob, linear, norm_clip(max_norm=1.0), ess" in every
    one = cli("methods", "seq_tis").out
    for said in (
        "acts at   weigh\n",
        "formula   w_i = min(",
        "source    veRL",
        "[published]",
        "corrects  current/behavior",
        "cost      one sum",
    ):
        assert said in one
    for said in ("fails     The product", "switches  c = 8.0  cap on the ratio", "code      trimtab.methods.seq_tis\n"):
        assert said in one
    assert 'std = "group"  group | population | batch | none;' in cli("methods", "grpo").out
    assert "vcpo is a bundle: seq_tis(c=8.0), opob" in cli("methods", "vcpo").out
    unknown = cli("methods", "vpco")
    assert unknown.code == 2
    assert unknown.sentence.startswith("methods = 'vpco': unknown method; use one of ")


def test_config_show_is_a_file_that_says_the_same(home: Path, tmp_path: Path) -> None:
    shown = cli("config", "show", home / "tiny.toml", "runtime.lag=1")
    assert shown.code == 0
    assert tomllib.loads(shown.out)["runtime"] == {"kind": "lockstep", "lag": 1, "swap_every": 0, "surplus": 0.0}
    (tmp_path / "shown.toml").write_text(shown.out)
    assert cli("config", "show", tmp_path / "shown.toml").out == shown.out
    said = cli("config", "show", home / "tiny.toml", 'methods=["seq_tis"]').out
    assert [line for line in said.splitlines() if line.startswith("#")] == [
        "# no credit method: added grpo",
        "# no objective method: added linear",
        "# no gradient clip: added norm_clip(max_norm=1.0)",
    ]


def test_config_check(home: Path) -> None:
    ran = cli("config", "check", home / "tiny.toml")
    assert (ran.code, ran.out) == (
        0,
        f"{home / 'tiny.toml'} is sound: 6 batches, lockstep, methods seq_tis, opob, linear, norm_clip, ess\n"
        f"  model: {home / 'model'}, 19,808 parameters\n"
        "  task: train, 100 rows, 8 for evaluation\n"
        f"  reward: support.rewards:digit in {Path(rewards.__file__)}\n",
    )


def test_init_writes_a_sound_file_and_never_over_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli("init", "mine.toml", "--model", "models/qwen")
    assert ran.code == 0
    assert "wrote mine.toml: set model, path and reward" in ran.out
    config = load("mine.toml")
    assert (config.name, config.model, config.runtime.kind) == ("mine", "models/qwen", "local")
    with untouched(tmp_path):
        again = cli("init", "mine.toml")
    assert (again.code, again.sentence) == (2, "path = 'mine.toml': it exists; choose another name")


def test_doctor_checks_the_machine_and_a_configuration(home: Path) -> None:
    ran = cli("doctor", home / "tiny.toml")
    lines = {line.split()[1]: line for line in ran.out.splitlines()}
    assert {"packages", "cores", "memory", "disk", "locks", "model", "task", "methods"} <= set(lines)
    assert lines["model"].startswith("ok  ")
    bad = cli("doctor", home / "tiny.toml", f"model={home / 'nowhere'}")
    assert bad.code == 2
    assert "FAIL configuration" in bad.out
    assert "no such folder; name a local Hugging Face model folder" in bad.out


def test_an_unknown_benchmark() -> None:
    ran = cli("bench", "speed")
    assert (ran.code, ran.sentence) == (2, "bench = 'speed': there are norms, methods, rollout, publish, async, peers")


def test_warmstart_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    ran = cli("warmstart", tmp_path / "m", "stepz=3")
    assert ran.code == 2
    assert ran.sentence.startswith("warmstart = 'stepz=3': unknown key; there are ")
    ran = cli("warmstart", tmp_path / "m", "hidden=wide")
    assert (ran.code, ran.sentence.partition(":")[0]) == (2, "hidden = 'wide'")
    assert not (tmp_path / "m").exists()


# -------------------------------------------------------------------------------------------------------------------------- start

START = """
import resource, sys
sys.argv = ["trimtab", *{arguments!r}]
from trimtab.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
heavy = sorted({{m.partition(".")[0] for m in sys.modules}} & {{"torch", "transformers", "pyarrow", "reasoning_gym", "matplotlib"}})
used = resource.getrusage(resource.RUSAGE_SELF)
print("\\n", heavy, used.ru_utime + used.ru_stime)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["config", "check", "quickstart"], ["config", "show", "quickstart"], ["methods"]])
def test_what_needs_no_model_starts_without_torch(arguments: list[str]) -> None:
    ran = subprocess.run([sys.executable, "-c", START.format(arguments=arguments)], capture_output=True, text=True, check=True)
    heavy, _, seconds = ran.stdout.splitlines()[-1].strip().rpartition(" ")
    assert heavy == "[]"
    assert float(seconds) < 0.8


# ------------------------------------------------------------------------------------------------------- other runs, other places


def test_history_that_is_damaged_keeps_no_run_from_going_on(finished: Finished, tmp_path: Path) -> None:
    """A byte in an old rollout file, a damaged line, stray files: said, set aside, and the run goes on to the same weights."""
    run = tmp_path / "worn"
    shutil.copytree(finished.run, run)
    shutil.rmtree(run / "model")
    first = run / "rollouts" / "000000.parquet"
    first.write_bytes(first.read_bytes()[:200] + b"x" + first.read_bytes()[201:])
    (run / "rollouts" / "1 copy.parquet").write_text("stray")
    (run / "eval").mkdir(exist_ok=True)
    (run / "eval" / ".DS_Store").write_text("stray")
    log = run / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([lines[0], "{torn\n", *lines[1:]]))
    for command in (("show", run), ("show", run, "--batch", "0"), ("replay", run), ("report", run)):
        assert "Traceback" not in cli(*command).err
    assert cli("resume", run).code == 0
    assert (run / "model" / "model.safetensors").read_bytes() == (finished.run / "model" / "model.safetensors").read_bytes()


def test_export_makes_a_model_of_any_checkpoint_and_another_run_starts_from_it(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trimtab.engines.checkpoint import load_policy

    run = tmp_path / "stopped"
    shutil.copytree(finished.run, run)
    shutil.rmtree(run / "model")
    monkeypatch.chdir(finished.home)
    assert "trimtab export" in cli("eval", run).sentence
    assert "trimtab export" in cli("train", "tiny.toml", f"model=run:{run}", "name=next").sentence
    for number, arguments in ((BATCHES, ()), (BATCHES - 2, ("--checkpoint", str(BATCHES - 2)))):
        ran = cli("export", run, *arguments)
        assert (ran.code, ran.out) == (0, f"{run / 'exported' / f'{number:06d}'}\n")
        made = load_policy(run / "exported" / f"{number:06d}").model.state_dict()
        saved = checkpoint.load(run / "checkpoints", number)["model"]
        assert isinstance(saved, dict)
        assert all(torch.equal(made[name], tensor) for name, tensor in saved.items())
    assert "has no checkpoint 77" in cli("export", run, "--checkpoint", "77").sentence
    assert cli("train", "tiny.toml", f"model=run:{run}", "name=next", "learner.batches=1").code == 0
    first = checkpoint.load(finished.home / "runs" / "next" / "checkpoints", 0)["model"]
    last = checkpoint.load(run / "checkpoints", BATCHES)["model"]
    assert isinstance(first, dict)
    assert isinstance(last, dict)
    assert all(torch.equal(first[name], tensor) for name, tensor in last.items())


def test_a_run_is_resumed_from_anywhere(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model was named by a relative path; its record names it for a reader who stands elsewhere."""
    monkeypatch.chdir(finished.home)
    assert cli("train", "tiny.toml", "model=model", "name=away", "learner.batches=2").code == 0
    monkeypatch.chdir(tmp_path)
    assert cli("resume", finished.home / "runs" / "away", "batches=3").code == 0
    assert cli("show", finished.home / "runs" / "away").code == 0


def test_a_second_run_of_one_name_beside_the_first_gets_the_next_name(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished.home)
    Path("twin.toml").write_text(Path("tiny.toml").read_text().replace('name = "run"', 'name = "twin"'))
    with RunFolder.create(Path("runs/twin")):  # it has begun, and has not yet written its configuration
        ran = cli("train", "twin.toml", "learner.batches=1")
        assert (ran.code, "runs/twin-2/model" in ran.out) == (0, True)
        assert "is in use" in cli("train", "tiny.toml", "name=twin", "learner.batches=1").sentence
