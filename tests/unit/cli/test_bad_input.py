"""Bad input gets one clear sentence and exit code 2, before anything expensive; nothing is half-written and nothing is lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from support.cli import Ran, cli, untouched
from support.rollouts import rollout, segment
from support.updates import group
from trimtab.cli.looking import _print
from trimtab.cli.progress import Progress
from trimtab.config.load import load
from trimtab.store import checkpoint
from trimtab.store.run_folder import RunFolder
from trimtab.telemetry.events import Event, Severity
from trimtab.telemetry.metrics import BatchRecord

from .conftest import BATCHES, Finished


@pytest.fixture
def work(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with the configuration in it; the working directory."""
    shutil.copy(home / "tiny.toml", tmp_path / "tiny.toml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(finished: Finished, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished.run, tmp_path / "run"))


def refused(work: Path, *arguments: str, code: int = 2) -> str:
    """The sentence; and the working directory is as it was."""
    with untouched(work):
        ran = cli("train", "tiny.toml", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert not (work / "runs" / "run").exists()
    return ran.sentence


# --------------------------------------------------------------------------------------------------------------- the configuration


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("lerner.batches=3", "lerner = {'batches': 3}: unknown key; did you mean learner?"),
        ('methods=["vpco"]', "methods = 'vpco': unknown method; use one of "),
        ('methods=["seq_tis", "grpo", "rloo"]', "methods = ['grpo', 'rloo']: both own the credit point; keep one of them"),
        ("methods=[]", 'methods = []: an asynchronous run needs a correction; write ["vcpo"], or ["none"]'),
        ('methods=["vcpo", "ppo_clip"]', "methods = ['opob', 'ppo_clip']: opob needs an objective linear in the advantage"),
        ("rollout.group_size=1", "rollout.group_size = 1: opob compares the members of a group and needs at least 2"),
        ("rollout.max_new_tokens=255", "none of 100 training prompts can be run: the prompt of line 1 of "),
        ("learner.device=cuda", "learner.device = 'cuda': this machine shows no CUDA device; use cpu"),
        ("engine.device=cuda", "engine.device = 'cuda': this machine shows no CUDA device; use cpu"),
        ("task.path=nowhere.jsonl", "task.path = 'nowhere.jsonl': cannot be read (No such file or directory)"),
        ("task.reward=no_such_module:f", "task.reward = 'no_such_module:f': module no_such_module does not import"),
        ("model=nowhere", "model = 'nowhere': no such folder; name a local Hugging Face model folder"),
    ],
)
def test_what_a_configuration_cannot_be(work: Path, override: str, said: str) -> None:
    if "cuda" in override and torch.cuda.is_available():
        override, said = "model=nowhere", "model = 'nowhere': no such folder"
    assert refused(work, override).startswith(said)


def test_a_depth_below_what_lag_allows(work: Path) -> None:
    said = refused(work, "runtime.kind=local", "runtime.max_lag=2", "runtime.depth=3")
    assert said == "runtime.depth = 3: max_lag = 2 leaves no use for more; lower depth or raise max_lag"


# --------------------------------------------------------------------------------------------------------------------- the model


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def poison(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def drop_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def truncate(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: (f / "tokenizer.json").unlink(), "it has no tokenizer files; save the tokenizer beside the model"),
        (lambda f: (f / "config.json").unlink(), "not a model folder, it has no config.json"),
        (lambda f: (f / "model.safetensors").unlink(), "lacks model.safetensors; only safetensors weights are read"),
        (truncate, "is corrupt ("),
        (drop_tensor, "the weights lack the tensor model.norm.weight; export the model again"),
        (poison, "the tensor model.norm.weight holds NaN or inf; use an earlier checkpoint"),
        (lambda f: edit_config(f, attention_dropout=0.1), "attention_dropout = 0.1 makes sampled and scored log-probs differ; set it to 0"),
        (lambda f: edit_config(f, architectures=["LlamaForCausalLM"]), "architectures = ['LlamaForCausalLM'] is not supported"),
        (lambda f: edit_config(f, use_sliding_window=True), "sliding-window attention is not supported"),
    ],
    ids=["tokenizer", "config", "no weights", "half the weights", "a tensor", "nan", "dropout", "architecture", "window"],
)
def test_what_a_model_folder_cannot_be(work: Path, home: Path, spoil: Callable[[Path], object], said: str) -> None:
    shutil.copytree(home / "model", work / "model")
    spoil(work / "model")
    assert said in refused(work, "model=model")


# ----------------------------------------------------------------------------------------------------------------- the run folder


def test_a_run_folder_in_use(finished: Finished, run: Path) -> None:
    with RunFolder.open(run), untouched(run):
        ran = cli("resume", run)
    assert (ran.code, ran.sentence) == (
        2,
        f"run folder {run} is in use by process {os.getpid()} on {os.uname().nodename}: stop it or choose another folder",
    )
    assert cli("resume", run).code == 0


def test_a_name_that_was_asked_for_and_is_taken(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished.home)
    with untouched(finished.run):
        ran = cli("train", "tiny.toml", "name=done")
    assert ran.code == 2
    assert ran.sentence == ("run folder runs/done already holds a run: continue it with `trimtab resume runs/done` or choose another name")


def test_a_checkpoint_of_another_configuration(run: Path) -> None:
    """Every field that may not change is named with both values; nothing is touched."""
    with untouched(run):
        ran = cli("resume", run, "learner.optimizer.lr=1", "seed=5", "eval.prompts=4", 'methods=["seq_tis"]')
    assert ran.code == 2
    assert ran.sentence.startswith(
        "the checkpoint belongs to another configuration: learner.optimizer.lr (0.0005 in the checkpoint, 1.0 asked), "
    )
    assert "seed (0 in the checkpoint, 5 asked)" in ran.sentence
    assert "methods ([{'name': 'seq_tis'" in ran.sentence
    assert "eval.prompts" not in ran.sentence.partition("; a resumed run may change")[0]


@pytest.mark.parametrize(
    "field", ["runtime.lag=3", "rollout.group_size=8", "model=x", "name=x", "task.seed=1", "engine.slots=3", "runtime.kind=local"]
)
def test_what_a_resumed_run_may_not_change(run: Path, field: str) -> None:
    with untouched(run):
        ran = cli("resume", run, field)
    assert ran.code == 2
    assert field.partition("=")[0] in ran.sentence


@pytest.mark.parametrize(
    "fields",
    [["batches=7"], ["store.every=3", "store.keep=1"], ["telemetry.detectors.ess.action=stop"], ["eval.prompts=4"], ["verifier.workers=2"]],
)
def test_what_a_resumed_run_may_change(run: Path, fields: Sequence[str]) -> None:
    assert cli("resume", run, *fields).code == 0


def test_a_plan_can_only_grow(run: Path) -> None:
    with untouched(run):
        ran = cli("resume", run, "batches=5")
    assert (ran.code, ran.sentence) == (2, f"learner.batches = 5: the run was planned for {BATCHES}; a plan can only grow")


def corrupt(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def test_a_corrupt_checkpoint_is_passed_over_and_kept(run: Path) -> None:
    newest = max(checkpoint.numbers(run / "checkpoints"))
    older = sorted(checkpoint.numbers(run / "checkpoints"))[-2]
    corrupt(run / "checkpoints" / f"{newest:06d}" / "model.safetensors")
    assert cli("resume", run).code == 0
    assert f"passing over checkpoint {newest}" in (run / "run.log").read_text()
    assert (run / "orphans" / f"{older:06d}-1" / "checkpoints" / f"{newest:06d}").is_dir()
    assert json.loads((run / "summary.json").read_text())["batches"] == BATCHES


def test_no_checkpoint_that_verifies(run: Path) -> None:
    for number in checkpoint.numbers(run / "checkpoints"):
        corrupt(run / "checkpoints" / f"{number:06d}" / "model.safetensors")
    with untouched(run):
        ran = cli("resume", run)
    assert ran.code == 2
    assert "has no checkpoint that can be loaded: " in ran.last
    assert "is corrupt (its digest differs from the manifest's)" in ran.last


def test_no_checkpoint_at_all(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    with untouched(run):
        ran = cli("resume", run)
    assert ran.code == 2
    assert "has no checkpoint" in ran.sentence


def test_a_configuration_of_the_run_that_is_broken(run: Path) -> None:
    (run / "config.json").write_text("{")
    for command in ("resume", "show", "replay", "eval"):
        ran = cli(command, run)
        assert ran.code == 2
        assert ran.sentence.startswith(f"{run / 'config.json'} cannot be read (")


def test_a_full_disk_costs_nothing_that_was_there(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = checkpoint.write_file
    full = False

    def write_file(path: Path, data: Any) -> None:
        if full and path.name == "model.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path, data)

    def fill(*_: object) -> None:
        nonlocal full
        full = True

    monkeypatch.setattr(checkpoint, "write_file", write_file)
    fill_after(monkeypatch, 3, fill)
    ran = cli("train", "tiny.toml")
    run = work / "runs" / "run"
    assert ran.code == 2
    assert ran.last == (
        "runs/run/checkpoints/000004 could not be written because the disk is full: checkpoint 2 is intact; "
        "free some space and continue with `trimtab resume`"
    )
    assert checkpoint.numbers(run / "checkpoints") == [0, 2]
    assert json.loads((run / "summary.json").read_text())["status"] == "failed"

    monkeypatch.undo()
    monkeypatch.chdir(work)
    assert cli("resume", run).code == 0
    assert json.loads((run / "summary.json").read_text())["batches"] == BATCHES


def fill_after(monkeypatch: pytest.MonkeyPatch, batches: int, fill: Callable[..., None]) -> None:
    """Call ``fill`` once so many batches have been shown."""
    from trimtab.cli.progress import Progress

    real = Progress.batch

    def batch(self: Progress, record: Any, waiting_for: str) -> None:
        real(self, record, waiting_for)
        if record.batch + 1 == batches:
            fill()

    monkeypatch.setattr(Progress, "batch", batch)


# ------------------------------------------------------------------------------------------------------------------- the verifier

REWARDS = """
import time

def raises(prompt, response, answer, data):
    raise RuntimeError("no idea")

def nan(prompt, response, answer, data):
    return float("nan")

def hangs(prompt, response, answer, data):
    time.sleep(60)
"""


def train_with(work: Path, function: str, monkeypatch: pytest.MonkeyPatch) -> Ran:
    (work / "bad_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(str(work))
    try:
        limits = ["verifier.max_failures=3", "verifier.deadline_s=0.3", "verifier.first_deadline_s=0.3"]
        return cli("train", "tiny.toml", f"task.reward=bad_rewards:{function}", *limits)
    finally:
        sys.modules.pop("bad_rewards", None)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", "error: RuntimeError: no idea"),
        ("nan", "error: the score is nan"),
        ("hangs", "timeout: no verdict within 0.3 s, on the first response of a process"),
    ],
)
def test_a_verifier_that_does_nothing_but_fail_stops_the_run(work: Path, monkeypatch: pytest.MonkeyPatch, function: str, said: str) -> None:
    ran = train_with(work, function, monkeypatch)
    assert ran.code == 3
    assert ran.last == (
        f"verifier.max_failures = 3: scorer bad_rewards:{function} failed that many times in a row, the last with {said}; "
        "repair the scorer or raise the limit"
    )
    summary = json.loads((work / "runs" / "run" / "summary.json").read_text())
    assert summary["status"] == "stopped"
    assert said in summary["reason"]
    if function == "raises":
        rows = [json.loads(line) for line in (work / "runs" / "run" / "run.log").read_text().splitlines()]
        [trace] = [row["trace"] for row in rows if "trace" in row and "bad_rewards" in row["trace"]]
        assert trace.splitlines()[-1] == "RuntimeError: no idea", "once, and in the log"


# ------------------------------------------------------------------------------------------------------------- text from outside


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (f"learner.batches={5000 * '9'}", "it cannot be read: Exceeds the limit (4300 digits)"),
        ("seed=99999999999999999999", "seed = 99999999999999999999: an integer beyond 64 bits; give a smaller one"),
        (f"seed=0x{5000 * 'f'}", "seed = (int too large to be shown): an integer beyond 64 bits"),
        (f"methods={5000 * '['}{5000 * ']'}", "it cannot be read: it is nested more than 100 levels deep"),
        (f"{200 * 'a.'}a=1", "no key has 200 dots"),
        (
            f"name={300 * 'n'}",
            "it becomes a folder: use letters, digits, dots, hyphens and underscores, no dot or hyphen first, 100 at most",
        ),
        ('name="run\\n"', r"name = 'run\n': it becomes a folder"),
        ('model="a\\u0000b"', r"model = 'a\x00b': it holds a null character"),
        ("model=\udcff", "it holds a null character or is not UTF-8 text; leave it out"),
        (f"model={5000 * 'm'}", "its name is too long"),
        ("model=\x1b[2J[red]", r"model = '\x1b[2J[red]': no such folder"),
    ],
    ids=["digits", "64 bits", "hex", "nested", "dots", "name", "line break", "null", "bytes", "path", "escape"],
)
def test_text_that_nobody_would_write(work: Path, override: str, said: str) -> None:
    sentence = refused(work, override)
    assert said in sentence
    assert sentence.isprintable()
    assert len(sentence) < 3000


@pytest.mark.parametrize("text", ["x = " + 5000 * "9", "x = " + 5000 * "[" + 5000 * "]", "x = {" + 2000 * "a." + "a = 1}"])
def test_a_file_that_nobody_would_write(work: Path, text: str) -> None:
    (work / "odd.toml").write_text(text)
    for command in (("train", "odd.toml"), ("config", "show", "odd.toml"), ("lab", "show", "odd.toml")):
        ran = cli(*command)
        assert ran.code == 2
        assert "not valid TOML: " in ran.sentence


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_model_that_brings_code_is_refused_by_name_and_its_code_not_run(work: Path, home: Path, file: str) -> None:
    shutil.copytree(home / "model", work / "model")
    (work / "model" / "evil.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    path = work / "model" / file
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | {"model_type": "unheard-of", "auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}}))
    said = refused(work, "model=model")
    assert said.startswith(f"model = 'model': {file} has auto_map = {{'AutoTokenizer': ['evil.Tokenizer', None]}}: it wants Python code")
    assert not (work / "ran").exists()


def test_a_file_that_the_machine_refuses_anywhere(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no room expected is a sentence, too; an error of the program is not hidden by it."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), *([str(name)] if name else []))

    monkeypatch.setattr("trimtab.cli.looking.report", refuse)
    number, name = errno.EMFILE, None
    assert cli("report", work).sentence == (
        "a file could not be opened or written "
        "because too many files are open: what was there before is unchanged; raise the limit (ulimit -n)"
    )
    number, name = errno.EROFS, work / "a\x1b[1m"
    assert cli("report", work).sentence.startswith(
        rf"{work}/a\x1b[1m could not be opened or written because the file system is read-only: "
    )
    number = errno.ESPIPE
    with pytest.raises(OSError, match="Illegal seek"):
        cli("report", work)


def test_what_a_rollout_says_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    spoken = ["\x1b[2J", "[red]", "\r\n", "\x07", "é"]
    said = rollout(segment(np.random.default_rng(0), "..aaaaa", vocab=5))
    _print(Console(force_terminal=False, width=200), lambda ids: spoken[ids[0]], group(0, [said]), said, 9)
    head, text, _ = capsys.readouterr().out.splitlines()
    shown = (r"\x1b[2J", "[red]", r"\r\n", r"\x07", "é")
    assert text.strip() == "".join(shown[token] for token in said.segments[0].tokens)
    assert head.isprintable()


def test_progress_shows_names_and_messages_as_they_are(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    progress = Progress(load("quickstart"), Path("[bold]runs[/red]/$a$\x1b[2J"))
    huge = BatchRecord(batch=0, version=0, incarnation=0, time=0.0, applied=True, metrics={"grad/raw_norm": 1.7e308, "age/max": -1e308})
    progress.batch(huge, "worker [/x]\x07")
    progress.event(Event(name="verdicts", severity=Severity.WARN, batch=0, message="KeyError: '[red]\x1b[31m'\nand more", evidence={}))
    begun, *notes, line, event = capsys.readouterr().err.splitlines()
    assert begun.startswith(r"[bold]runs[/red]/$a$\x1b[2J: ")
    assert all(note.startswith("note: ") for note in notes)
    assert "grad norm 1.70e+308" in line
    assert "oldest -1.00e+308" in line
    assert line.endswith(r"worker [/x]\x07")
    assert event == r"warn: batch 0: verdicts: KeyError: '[red]\x1b[31m'\nand more"
