"""Every snippet of the documentation works: Python runs, configurations load, commands exist and take what they are given."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from support.cli import cli
from support.docs import LANGUAGES, ROOT, blocks, commands, pages, said
from support.tiny import tiny_folder
from trimtab.cli.main import app
from trimtab.config.load import load, validate
from trimtab.lab.load import load as load_experiment
from trimtab.lab.recipe import WarmstartOptions
from trimtab.records import Json
from unit.cli.conftest import Finished

ROWS = "".join(json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) + "\n" for i in range(6))
UsageError = typer.BadParameter.__mro__[1]  # typer has a click of its own, and exports this only
REWARD = "def score(prompt, response, answer, data):\n    return float(response == answer)\n"
PLACEHOLDERS = {"N": "1", "MINUTES": "1"}
CHEAP = (["init"], ["config"], ["methods"], ["metrics"], ["lab", "list"])  # run, where all that they need is there

# Python that stands for a part of something larger: it is compiled and its imports are done, no more. (page, how it begins): why.
EXCERPTS = {
    ("docs/lab.md", "@takes(Options)"): "a runner; tests/unit/lab/test_own_code.py runs one",
    ("docs/lab.md", "from trimtab.sim.fit"): "of a finished run of the local runtime; tests/e2e/test_sim.py does it",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what readers are told to bring: a model, prompts and a reward."""
    tiny_folder(tmp_path / "path/to/qwen2")
    for name in ("prompts.jsonl", "more.jsonl"):
        (tmp_path / name).write_text(ROWS)
    (tmp_path / "my_reward.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write_files(page: str, place: Path) -> None:
    for block in blocks(page):
        if block.file:
            (place / block.file).write_text(block.text)
    for name in {Path(b.file).stem for b in blocks(page) if b.file.endswith(".py")}:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("page", pages())
def test_every_block_says_what_it_is(page: str) -> None:
    wrong = [f"line {b.line}: {b.language!r}" for b in blocks(page) if b.language not in LANGUAGES]
    assert wrong == [], f"{page}: a fenced block begins with one of {LANGUAGES}, see tests/support/docs.py"


@pytest.mark.parametrize("page", [p for p in pages() if any(b.language == "python" for b in blocks(p))])
def test_python_runs(page: str, place: Path, finished: Finished) -> None:
    write_files(page, place)
    shutil.copytree(finished.run, place / "runs" / "quickstart")
    for block in blocks(page):
        if block.language != "python":
            continue
        if (page, block.text.split("\n")[0].partition(" import")[0].partition("  #")[0]) in EXCERPTS:
            tree = ast.parse(block.text)
            imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(imports, []), page, "exec"), {})
            continue
        file = place / (block.file or "snippet.py")
        file.write_text(block.text)
        runpy.run_path(str(file))


@pytest.mark.parametrize("page", [p for p in pages() if any(b.language == "jsonl" for b in blocks(p))])
def test_rows_are_objects(page: str) -> None:
    for block in blocks(page):
        if block.language == "jsonl":
            assert block.file
            assert all(isinstance(json.loads(line), dict) for line in block.text.splitlines())


@pytest.mark.parametrize("page", [p for p in pages() if any(b.language == "toml" for b in blocks(p))])
def test_configurations_load(page: str, place: Path) -> None:
    write_files(page, place)
    for block in blocks(page):
        if block.language == "toml":
            table = tomllib.loads(block.text)
            if block.file:
                assert load(block.file).model
            elif "claim" in table:
                (place / "mine.toml").write_text(block.text)
                assert load_experiment("mine.toml").experiment.claim == table["claim"]
            elif set(table) == {"options"}:
                (recipe,) = table["options"]["models"].values()
                WarmstartOptions.model_validate(recipe)
            else:
                validate(small(table))


def small(table: dict[str, Json]) -> dict[str, Json]:
    """A part of a configuration, with the least around it that makes it one."""
    task = table.get("task", {})
    assert isinstance(task, dict)
    base: dict[str, Json] = {"model": "path/to/qwen2", "methods": ["vcpo"], "task": dict(task), "rollout": {"max_new_tokens": 8}}
    if not {"path", "prompts"} & set(task) and task.get("kind", "jsonl") == "jsonl":
        base["task"] = {"kind": "jsonl", "path": "prompts.jsonl", **task}
    elif "kind" not in task:
        base["task"] = {"kind": "jsonl", **task}
    for key, value in table.items():
        if key != "task":
            inner = base.get(key)
            base[key] = {**inner, **value} if isinstance(inner, dict) and isinstance(value, dict) else value
    for one, other in (("learner", "engine"), ("engine", "learner")):  # one dtype: a part that names it on one side means both
        mine = base.get(one, {})
        if isinstance(mine, dict) and "dtype" in mine:
            theirs = base.setdefault(other, {})
            assert isinstance(theirs, dict)
            theirs.setdefault("dtype", mine["dtype"])
    return base


@pytest.mark.parametrize("page", pages())
def test_lists_of_methods_are_accepted(page: str) -> None:
    written = [*said(page, "methods = ["), *said(page, "methods=[")]
    lines = [line for b in blocks(page) if b.language == "bash" for line in b.text.splitlines() if line.startswith("methods = [")]
    for line in [*written, *lines]:
        listed = tomllib.loads(line.partition("  #")[0])["methods"]
        runtime: dict[str, Json] = {"kind": "lockstep", "surplus": 1.0} if "pace" in str(listed) else {"kind": "lockstep"}
        validate(small({"methods": listed, "runtime": runtime}))


@pytest.mark.parametrize("page", pages())
def test_commands_exist(page: str) -> None:
    for line in commands(page):
        words = shlex.split(re.sub(r"[\[\]…]", " ", line) if "[" in line and "=[" not in line and "extras" not in line else line)
        if words[0] == "trimtab":
            parse([PLACEHOLDERS.get(word, word) for word in words[1:]], line)
        elif words[0] == "make":
            assert re.search(rf"^{re.escape(words[1])}:", (ROOT / "Makefile").read_text(), re.M), line
        elif words[0] == "python":
            assert words[1] == "-m" or (ROOT / words[1]).is_file(), line
        elif words[:2] == ["pip", "install"]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert all(name in extras for name in re.findall(r"\[([\w,]+)\]", line)), line
        else:
            pytest.fail(f"{page}: nobody knows the command {line}")


def parse(words: list[str], line: str) -> None:
    """The command of these words is there and takes its arguments; nothing is run."""
    command = typer.main.get_command(app)
    context = command.context_class(command, info_name="trimtab")
    while isinstance(command, TyperGroup):
        if not words or words[0].startswith("-"):
            known = {"-h", "--help", *(word for option in command.params for word in option.opts)}
            assert known.issuperset(words), line
            return
        inner = command.get_command(context, words[0])
        assert inner is not None, f"{line}: there is no command {words[0]}"
        command, words = inner, words[1:]
        context = command.context_class(command, parent=context, info_name=command.name)
    if not words:  # only named, as "`trimtab eval`" is in a sentence
        return
    try:
        command.make_context(command.name, words, parent=context.parent)
    except UsageError as error:
        raise AssertionError(f"{line}: {error.format_message()}") from None


@pytest.mark.parametrize("page", ["README.md", "docs/tasks.md"])
def test_cheap_commands_run(page: str, place: Path) -> None:
    write_files(page, place)
    ran = 0
    for block in blocks(page):
        for line in block.text.splitlines() if block.language == "bash" else ():
            words = shlex.split(line, comments=True)
            if words[:1] == ["trimtab"] and any(words[1 : 1 + len(c)] == c for c in CHEAP):
                result = cli(*words[1:])
                assert result.code == 0, (line, result.err)
                ran += 1
    assert ran


@pytest.mark.slow
def test_the_run_of_the_tasks_page_runs(place: Path) -> None:
    write_files("docs/tasks.md", place)
    assert cli("config", "check", "my.toml", "--deep").code == 0
    ran = cli("train", "my.toml", "learner.batches=2", "rollout.prompts_per_batch=2", "rollout.group_size=4", "learner.optimizer.lr=1e-4")
    assert ran.code == 0, ran.err
    assert (place / "runs" / "run" / "summary.json").is_file()


@pytest.mark.parametrize("reward", ["my_reward", "graded", "judged", "longer", "stepwise"])
def test_rewards_of_the_tasks_page_load_and_judge(reward: str, place: Path) -> None:
    """In this process, by what loads and judges them in the scorer's."""
    from trimtab.tasks.protocol import Prompt
    from trimtab.tasks.reward import FunctionScorer
    from trimtab.tasks.verifier_process import judge

    write_files("docs/tasks.md", place)
    scorer = FunctionScorer(f"{reward}:score").build()
    prompt = Prompt(row=0, text="2+3=", answer="5", source="prompts", data={"prompt": "2+3=", "answer": "5"})
    right, wrong = judge(scorer, prompt, "5"), judge(scorer, prompt, "6")
    assert (right.outcome.value, right.score) == ("correct", 1.0), right
    assert wrong.outcome.value == "wrong", wrong
    assert wrong.score < 1.0
