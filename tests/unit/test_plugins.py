"""Plug-ins by entry point: used like built-in kinds, refused with the reason, and nothing of the laboratory is built in."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import trimtab
from trimtab.plugins import targets

SOURCE = Path(trimtab.__file__).parent
OWN = """
from typing import Literal

from trimtab.engines.options import ScriptedEngineOptions
from trimtab.learner.critic_options import CriticOptions
from trimtab.pool.rules import Rule
from trimtab.tasks.options import JsonlOptions
from trimtab.tasks.protocol import Step
from trimtab.tasks.shaping import ShapingOptions


class Echo(ScriptedEngineOptions):
    kind: Literal["echo"] = "echo"
    loud: bool = False


class Lines(JsonlOptions):
    kind: Literal["lines"] = "lines"


class Halves(ShapingOptions):
    stepwise = True
    kind: Literal["halves"] = "halves"

    def check(self, task):
        if task.answer_after is None:
            raise ValueError("task.shaping.kind = 'halves' needs task.answer_after")

    def steps(self, task, prompt, response):
        return (Step(0.5, 1), Step(0.5, len(response)))


class Zero(CriticOptions):
    kind: Literal["zero"] = "zero"
    remark = "the critic knows nothing"


class Never(Rule):
    def came(self, book): return 0
    def places(self, book, version): return 0
    def why(self, version): return "never"


class Misnamed(ScriptedEngineOptions):
    kind: Literal["other"] = "other"


class NoEngine:
    kind = "noengine"
"""
ENTRIES = """
[trimtab.engines]
echo = own_plugins:Echo
torch = own_plugins:Echo
gone = own_plugins:Gone
absent = no_such_module_anywhere:X
misnamed = own_plugins:Misnamed
noengine = own_plugins:NoEngine

[trimtab.tasks]
lines = own_plugins:Lines

[trimtab.shapings]
halves = own_plugins:Halves

[trimtab.critics]
zero = own_plugins:Zero

[trimtab.admissions]
never = own_plugins:Never
norule = own_plugins:Echo
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as ``pip install`` leaves it: a module and its metadata."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "own_plugins.py").write_text(OWN)
    info = folder / "own_plugins-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-plugins\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    return folder


def python(code: str, *path: Path) -> str:
    """What a fresh interpreter says last: plug-ins are looked for when the configuration is imported."""
    begin = f"import sys; sys.path[:0] = {[str(p) for p in path]!r}\n"
    done = subprocess.run([sys.executable, "-c", begin + code], check=False, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


LOAD = """
from trimtab.config.load import load, validate
from trimtab.records import TrimtabError
def said(*overrides, then=lambda c: "fine"):
    try: print(then(load("quickstart", overrides)))
    except TrimtabError as error: print(error)
"""


def test_a_kind_of_ones_own_is_configured_like_a_built_in_one(installed: Path) -> None:
    code = f"""{LOAD}
c = load("quickstart", ["engine.kind=echo", "engine.loud=true", "task.shaping.kind=halves", "learner.critic.kind=zero",
                        "runtime.admission=never", 'methods=["async_ppo"]'])
again = validate(c.model_dump(mode="json"))
print(again == c, *(type(x).__name__ for x in (c.engine, c.task.shaping, c.learner.critic)), c.chain().said[-1], 'torch' in sys.modules)
"""
    assert python(code, installed) == "True Echo Halves Zero the critic knows nothing False"


def test_steps_of_a_shaping_of_ones_own_come_with_the_verdict(installed: Path) -> None:
    code = """
from own_plugins import Halves, Lines
from trimtab.tasks.load import scorer_spec
from trimtab.tasks.protocol import Prompt
spec = scorer_spec(Lines(path="unused", answer_after=",", shaping={"kind": "halves"}))
verdict = spec.build().score(Prompt(row=0, text="", answer="4", source="", data={}), "3,4")
print(spec.name, verdict.score, [(s.reward, s.end) for s in verdict.steps])
"""
    assert python(code, installed) == "exact 1.0 [(0.5, 1), (0.5, 3)]"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["engine.kind=gone"], "engine.kind = 'gone': its entry point own_plugins:Gone does not load"),
        (["engine.kind=absent"], "engine.kind = 'absent': its entry point no_such_module_anywhere:X does not load"),
        (["engine.kind=misnamed"], """engine.kind = 'misnamed': its entry point own_plugins:Misnamed has not kind: Literal["misnamed"]"""),
        (
            ["engine.kind=noengine"],
            "engine.kind = 'noengine': own_plugins:NoEngine is not a subclass of trimtab.engines.options.EngineOptions",
        ),
        (["engine.kind=vllm"], "engine.kind = 'vllm': unknown kind; use one of 'torch', 'scripted', 'absent', 'echo'"),
        (["engine.kind=echo", "engine.lout=true"], "engine.lout = True: unknown key; did you mean loud?"),
        (
            ["runtime.max_lag=none", "runtime.depth=2", "runtime.admission=areal"],
            "runtime.max_lag = 'none': admission = 'areal' counts up to it; give a number",
        ),
        (
            ['task={kind = "lines", path = "unused", shaping = { kind = "halves" }}'],
            "task.shaping.kind = 'halves' needs task.answer_after",
        ),
        (["runtime.admission=nevr"], "runtime.admission = 'nevr': there is no such one; use one of lag, areal, never, norule"),
        (
            ["runtime.admission=norule"],
            "runtime.admission = 'norule': own_plugins:Echo is not a subclass of trimtab.pool.options.Admission",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_where_it_is_asked_for(installed: Path, overrides: list[str], sentence: str) -> None:
    assert python(f"{LOAD}\nsaid(*{overrides!r})", installed).startswith(sentence)


def test_built_in_names_cannot_be_taken(installed: Path) -> None:
    assert python(f"{LOAD}\nsaid(then=lambda c: type(c.engine).__name__)", installed) == "TorchEngineOptions"


def test_the_order_of_imports_does_not_matter() -> None:
    """A plug-in that is imported before what looks for it."""
    modules = {
        target.partition(":")[0]
        for name in ("engines", "critics", "shapings", "admissions")
        for target in targets(f"trimtab.{name}").values()
    }
    assert len(modules) >= 4
    code = ["engine.kind=latency", "task.shaping.kind=local", "learner.critic.kind=tabular", "runtime.admission=areal"]
    for module in sorted(modules):
        assert python(f"import {module}\n{LOAD}\nsaid(*{code!r})") == "fine", module


def test_the_core_does_not_know_the_laboratorys_names() -> None:
    """Nothing outside ``lab/``, ``bench/`` and the command that opens the laboratory names what only the laboratory has."""
    names = re.compile(
        r"""["'](latency|tabular|areal|local_steps)["']|\b(TabularCritic|LatencyEngine\w*|ArealGate|LocalShaping|right_response)\b|trimtab\.lab"""
    )
    found = [
        f"{path.relative_to(SOURCE)}: {match[0]}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in ("lab", "bench", "cli")
        for match in names.finditer(path.read_text())
    ]
    assert found == []
