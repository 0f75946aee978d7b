"""Trimtab without its extras: whatever needs one says so in a sentence with the command, and nothing else misses it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

import trimtab
from support import runs
from trimtab.config.load import to_toml
from trimtab.extras import EXTRAS

SOURCE = Path(trimtab.__file__).parent
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
MODULES = sorted({module for extra in EXTRAS.values() for module in extra})
BLOCKED = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
sys.argv = ["trimtab", *sys.argv[1:]]
from trimtab.cli.main import main
main()
"""


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str


def without(modules: list[str], cwd: Path, *arguments: str) -> Said:
    """``trimtab ARGUMENTS`` where these modules cannot be imported."""
    code = BLOCKED.format(modules=set(modules))
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


def refused(said: Said) -> str:
    """The one sentence of a refusal."""
    (line,) = said.err.strip().splitlines()
    assert (said.code, line[:9]) == (2, "trimtab: ")
    return line[9:]


def needs(package: str, extra: str) -> str:
    return f'needs the package {package}, which is not installed: pip install "trimtab[{extra}]"'


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    config = runs.config(
        home,
        ["vcpo"],
        runtime={"kind": "lockstep", "lag": 1},
        learner={"batches": 2},
        rollout={"max_new_tokens": 8, "prompts_per_batch": 4, "group_size": 4},
    )
    (home / "tiny.toml").write_text(to_toml(config).replace("support.rewards:digit", "own_reward:digit"))
    (home / "own_reward.py").write_text("def digit(prompt, response, answer, data):\n    return float(response[:1].isdigit())\n")
    return home


@pytest.mark.slow
def test_a_run_ends_well_without_any_extra(home: Path) -> None:
    """The page is the only thing that is missing, and can be made later."""
    ran = without(MODULES, home, "train", "tiny.toml", "name=bare")
    run = home / "runs" / "bare"
    assert ran.code == 0, ran.err
    last = ran.out.strip().splitlines()[-1].replace("\n", "")
    assert last == 'report  not made, it needs the package matplotlib: pip install "trimtab[report]", then trimtab report runs/bare'
    assert '"status": "done"' in (run / "summary.json").read_text()
    assert (run / "model" / "config.json").exists()
    assert not (run / "report.html").exists()
    logged = [json.loads(line)["message"] for line in (run / "run.log").read_text().splitlines()]
    assert f"report.html {needs('matplotlib', 'report')}" in logged
    assert refused(without(["matplotlib"], home, "report", "runs/bare")) == f"report.html {needs('matplotlib', 'report')}"
    assert without([], home, "report", "runs/bare").code == 0
    assert (run / "report.html").exists()


@pytest.mark.parametrize(
    ("module", "arguments", "sentence"),
    [
        (
            "tensorboard",
            ["train", "tiny.toml", "name=new", "telemetry.tensorboard=true", "model=no/such/model"],  # before the model is looked at
            f"telemetry.tensorboard = True {needs('tensorboard', 'tensorboard')}",
        ),
        (
            "reasoning_gym",
            ["train", "quickstart", "name=new"],
            f"task.kind = 'reasoning_gym' {needs('reasoning-gym', 'environments')}",
        ),
        (
            "reasoning_gym",
            ["config", "check", "quickstart"],
            f"task.kind = 'reasoning_gym' {needs('reasoning-gym', 'environments')}",
        ),
        ("simpy", ["lab", "run", "collapse"], f"trimtab lab run {needs('simpy', 'lab')}"),
        ("matplotlib", ["lab", "run", "collapse"], f"trimtab lab run {needs('matplotlib', 'lab')}"),
        ("reasoning_gym", ["lab", "run", "collapse"], f"trimtab lab run {needs('reasoning-gym', 'lab')}"),
    ],
)
def test_what_needs_an_extra_is_refused_before_it_starts(home: Path, module: str, arguments: list[str], sentence: str) -> None:
    assert refused(without([module], home, *arguments)) == sentence
    assert not (home / "runs" / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["config", "show", "quickstart"], 0),
        (["config", "check", "tiny.toml", "engine.kind=latency"], 0),
        (["methods"], 0),
        (["lab", "list"], 0),
        (["lab", "copy", "wall-clock", "copied.toml"], 0),
    ],
)
def test_what_needs_none_does_not_notice(home: Path, arguments: list[str], code: int) -> None:
    said = without(MODULES, home, *arguments)
    assert said.code == code, said.err


@pytest.mark.slow
def test_doctor_names_the_extras_that_are_not_there(home: Path) -> None:
    said = without(["simpy", "matplotlib"], home, "doctor")
    assert "Traceback" not in said.err
    (line,) = [line for line in said.out.splitlines() if "extras" in line]
    assert re.findall(r"trimtab\[(\w+)\]", line) == ["report", "lab"]


def test_the_table_of_extras_is_that_of_the_project() -> None:
    def packages(extra: str) -> set[str]:
        found: set[str] = set()
        for line in PROJECT["optional-dependencies"][extra]:
            name = re.split(r"[\[<>=]", line)[0]
            inner = re.findall(r"\w+", line.partition("[")[2].partition("]")[0])
            found |= {p for other in inner for p in packages(other)} if name == "trimtab" else {name}
        return found

    assert {extra: set(names.values()) for extra, names in EXTRAS.items()} == {extra: packages(extra) for extra in EXTRAS}
    assert packages("all") == {p for extra in EXTRAS for p in packages(extra)}
    core = {re.split(r"[\[<>=]", line)[0] for line in PROJECT["dependencies"]}
    assert not core & packages("all")


def test_extras_are_imported_where_they_are_used() -> None:
    """At the top of no module, but of those that are themselves imported where they are used."""
    allowed = {"telemetry/tensorboard.py"}
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{path.relative_to(SOURCE)}: {name}" for name in names if name.partition(".")[0] in MODULES]
    assert {line.partition(":")[0] for line in found} == allowed
