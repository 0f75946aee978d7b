"""What runners take, refused in one sentence before anything is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.laboratory import EXPERIMENT, experiment
from trimtab.lab import laboratory
from trimtab.lab.load import load
from trimtab.lab.runners import runner
from trimtab.records import TrimtabError

OWN = """
from pydantic import BaseModel
from trimtab.lab.runners import takes
class Options(BaseModel, extra="forbid"):
    x: int = 1
@takes(Options)
def strict(work, tell): ...
def free(work, tell): ...
"""


def planned(folder: Path, options: str) -> int:
    text = EXPERIMENT.replace("[base]", f"{options}\n[base]", 1)
    return len(laboratory.plan(load(str(experiment(folder, text)))))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ('runner = "timed"\noptions = { secnods = 3 }', "options.secnods = 3: no such key here; did you mean seconds?"),
        ('runner = "timed"\noptions = { learner_s = -1 }', "options.learner_s = -1: Input should be greater than or equal to 0"),
        ("options = { seconds = 3 }", "options.seconds = 3: no such key here; docs/lab.md lists them"),
        ("options = { modles = { a = {} } }", "options.modles = {'a': {}}: no such key here; did you mean models?"),
        ("options.models.a = { task = 'chess' }", "options.models.a.task = 'chess': Input should be 'chain_sum'"),
        ("options.models.a.phases = [{ stpes = 1 }]", "options.models.a.phases.0.steps is missing"),
        ('runner = "switch"', "options.before is missing"),
        ('runner = "switch"\noptions = { before = 3 }', "options.before = 3: Input should be a valid dictionary"),
        ('runner = "switch"\noptions = { before = {}, after = {} }', "options.after = {}: no such key here"),
        ('runner = "strict_of_lab:strict"\noptions = { y = 1 }', "options.y = 1: no such key here"),
    ],
)
def test_options_that_a_runner_does_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, sentence: str) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "strict_of_lab.py").write_text(OWN)
    with pytest.raises(TrimtabError) as error:
        planned(tmp_path, options)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_options_that_a_runner_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "strict_of_lab.py").write_text(OWN)
    for options in (
        "options.models.a.seed = 1",
        'runner = "switch"\noptions = { before = {}, models = {} }',
        'runner = "strict_of_lab:strict"\noptions = { x = 2 }',
        'runner = "strict_of_lab:free"\noptions = { y = 2 }',
    ):
        assert planned(tmp_path, options) == 6


def test_names() -> None:
    assert runner("train").__name__ == "train"  # type: ignore[attr-defined]
    with pytest.raises(TrimtabError, match="no such runner"):
        runner("tram")
    with pytest.raises(TrimtabError, match="does not load"):
        runner("support.laboratory:nothing")
