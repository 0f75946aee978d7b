"""``config check`` looks at what a configuration names, and the starter names what it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.cli import cli
from support.tiny import tiny_folder

REWARD = "def score(prompt, response, answer, data):\n    return 1.0\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A starter's folder with all that it names; nobody may run the reward's module."""
    monkeypatch.chdir(tmp_path)
    tiny_folder(tmp_path / "model")
    assert cli("init", "my.toml", "--model", "model", "--prompts", "rows.jsonl", "--reward", "my_own:score").code == 0
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "my_own.py").write_text(
        "raise SystemExit('config check ran it')\ndef score(prompt, response, answer, data):\n    return 1.0\n"
    )
    return tmp_path


def sentence(*overrides: str) -> str:
    ran = cli("config", "check", "my.toml", *overrides)
    assert (ran.code, ran.out) == (2, "")
    return ran.sentence


def test_what_is_there_is_said(here: Path) -> None:
    ran = cli("config", "check", "my.toml")
    assert ran.code == 0
    first, model, task, reward = ran.out.splitlines()
    assert first.startswith("my.toml is sound: 400 batches, local, methods ")
    assert model.strip().startswith("model: model, ")
    assert task.strip() == "task: rows, 36 rows, 4 for evaluation"
    assert reward.strip() == f"reward: my_own:score in {here / 'my_own.py'}"


def test_what_is_not_there_is_named(here: Path) -> None:
    assert sentence("model=nowhere").startswith("model = 'nowhere': no such folder")
    assert sentence("task.path=nowhere.jsonl").startswith("task.path = 'nowhere.jsonl': cannot be read")
    assert sentence("task.reward=nowhere:score").startswith("task.reward = 'nowhere:score': there is no module nowhere")
    assert sentence("task.reward=my_own:scor").endswith("my_own.py defines no scor")
    assert sentence("learner.reference=nowhere").startswith("model = 'nowhere': no such folder")
    (here / "my_own.py").write_text("def score(:\n")
    assert "is no Python" in sentence()
    (here / "model" / "config.json").write_text("{}")
    assert "is not supported" in sentence()


def test_names_that_come_from_elsewhere_are_not_refused(here: Path) -> None:
    (here / "my_own.py").write_text("from other import *\n")
    assert cli("config", "check", "my.toml").code == 0
    (here / "my_own.py").write_text("try:\n    from other import score\nexcept ImportError:\n    score = None\n")
    assert cli("config", "check", "my.toml").code == 0


def test_deep_loads_all_of_it(here: Path) -> None:
    (here / "my_own.py").write_text(REWARD)
    ran = cli("config", "check", "my.toml", "--deep", "task.chat=false", "rollout.max_new_tokens=8")
    assert ran.code == 0, ran.err
    assert "model: model: " in ran.out
    (here / "my_own.py").write_text("score = 3\n")
    assert cli("config", "check", "my.toml", "task.chat=false", "rollout.max_new_tokens=8").code == 0  # that shows only when it is loaded
    assert "score is a int, not a function" in sentence("--deep", "task.chat=false", "rollout.max_new_tokens=8")


def test_the_starter_s_learning_rate_follows_the_model_s_size(here: Path) -> None:
    from trimtab.cli.starter import learning_rate

    assert [learning_rate(n) for n in (100_000, 3_000_000, 135_000_000, 7_000_000_000, 10**12)] == [5e-4, 1e-4, 1.2e-5, 1.4e-6, 1e-6]
    text = (here / "my.toml").read_text()
    assert "lr = 0.0005" in text
    assert "depth = 3" in text
    assert cli("init", "other.toml").code == 0
    assert "1.2e-05 for 135 M" in (here / "other.toml").read_text()


def test_version_and_bundles() -> None:
    from trimtab import __version__

    assert cli("--version").out == f"trimtab {__version__}\n"
    listed = json.loads(cli("methods", "--json").out)
    assert {b["name"] for b in listed["bundles"]} >= {"vcpo", "copc", "dapo"}
    (vcpo,) = json.loads(cli("methods", "vcpo", "--json").out)["bundles"]
    assert [m["name"] for m in vcpo["methods"]] == ["seq_tis", "opob", "linear", "norm_clip", "ess"]


def test_quiet_says_only_how_it_ended(here: Path) -> None:
    (here / "my_own.py").write_text(REWARD)
    small = ("task.chat=false", "rollout.max_new_tokens=4", "learner.batches=2", "eval.every=0", "runtime.kind=lockstep")
    ran = cli("train", "my.toml", "--quiet", *small)
    assert (ran.code, ran.err) == (0, "")
    assert "model   runs/my/model" in ran.out
