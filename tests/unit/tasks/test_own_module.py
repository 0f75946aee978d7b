"""Files of the user's directory never stand in for installed modules, and the module of the reward is found all the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import trimtab

RUN = """
import sys
sys.path[:0] = {first!r}  # what this process finds first is its own affair
from trimtab.records import TrimtabError
from trimtab.tasks.options import VerifierOptions
from trimtab.tasks.protocol import Prompt
from trimtab.tasks.reward import FunctionScorer
from trimtab.tasks.verifier import Verifier
with Verifier(VerifierOptions(), FunctionScorer({reward!r})) as verifier:
    try:
        verifier.ready()
    except TrimtabError as error:
        sys.exit(str(error))
    verifier.submit(0, Prompt(row=0, text="", answer="", source="", data={{}}), "x")
    [(_, verdict)] = verifier.poll(60.0)
    print(verdict.score, verdict.detail)
"""

SHADOWS = ("random", "select", "numpy", "socket", "json", "psutil", "dataclasses", "site", "trimtab")
PACKAGE = str(Path(trimtab.__file__).parents[1])


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong file')\n")
    (tmp_path / "judge.py").write_text(
        "import random, select, socket, json, dataclasses, helper\n"
        "import numpy\n"
        "def score(prompt, response, answer, data): return helper.score(numpy.float64(0.5)), ''\n"
    )
    (tmp_path / "helper.py").write_text("def score(x): return float(x) + 0.25\n")
    (tmp_path / "pytest.py").write_text("def score(prompt, response, answer, data): return 0.125\n")  # an installed module has that name
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "inner.py").write_text("from parts import outer\ndef score(prompt, response, answer, data): return outer.x\n")
    (tmp_path / "parts" / "outer.py").write_text("x = 0.375\n")
    return tmp_path


def run(here: Path, reward: str, *, first: tuple[str, ...] = (), path: str = PACKAGE) -> subprocess.CompletedProcess[str]:
    code = RUN.format(reward=reward, first=list(first))
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, "-P", "-c", code], cwd=here, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(("reward", "score"), [("judge:score", 0.75), ("pytest:score", 0.125), ("parts.inner:score", 0.375)])
def test_the_directory_of_the_command_gives_the_reward_and_nothing_else(here: Path, reward: str, score: float) -> None:
    done = run(here, reward)
    assert done.stdout.split()[:1] == [str(score)], done.stderr


def test_a_reward_named_like_a_module_of_the_standard_library_is_refused_with_the_place(here: Path) -> None:
    done = run(here, "random:score")
    assert f"module random has no score (it is {Path(os.__file__).with_name('random.py')})" in done.stderr


@pytest.mark.parametrize("named", [".", "", "{here}"])
def test_the_directory_named_in_the_path_comes_last_too(here: Path, named: str) -> None:
    """``PYTHONPATH=.:...`` is a habit, an empty entry is the same, and ``python -m`` puts it first."""
    begin = "import os, runpy, sys; sys.path.pop(0); os.environ['PYTHONPATH'] = sys.argv[1]\n" + RUN.format(reward="judge:score", first=[])
    path = os.pathsep.join([named.format(here=here), PACKAGE])
    env = {**os.environ, "PYTHONPATH": PACKAGE}
    done = subprocess.run([sys.executable, "-c", begin, path], cwd=here, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.split()[:1] == ["0.75"], done.stderr


def test_a_folder_of_this_process_alone_is_searched_too(here: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As that of the script that was started."""
    other = tmp_path_factory.mktemp("other")
    (other / "far.py").write_text("def score(prompt, response, answer, data): return 0.0625\n")
    done = run(here, "far:score", first=(str(other),))
    assert done.stdout.split()[:1] == ["0.0625"], done.stderr
