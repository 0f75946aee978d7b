"""A stranger's first commands: a starter file under any name and for any model, a bundle as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.cli import cli
from trimtab.config.load import load


@pytest.mark.parametrize(("file", "name"), [("my problem.toml", "my-problem"), ("é.toml", "run"), ("v1.2.toml", "v1.2")])
def test_the_starter_file_is_sound_whatever_its_name_and_model(
    file: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = 'models/a "b"\\c é'
    assert cli("init", file, "--model", model).code == 0
    config = load(file)
    assert (config.name, config.model) == (name, model)


def test_a_starter_file_that_cannot_be_written(tmp_path: Path) -> None:
    ran = cli("init", tmp_path / "nowhere" / "x.toml")
    assert ran.code == 2
    assert ran.sentence.endswith("cannot be written (No such file or directory); choose another place")


@pytest.mark.parametrize("name", ["..", ".", "-x", "a/b"])
def test_a_name_that_is_no_folder_of_its_own_is_refused(name: str) -> None:
    ran = cli("config", "check", "quickstart", f"name={name}")
    assert ran.code == 2
    assert ran.sentence.startswith(f"name = {name!r}: ")


def test_a_bundle_as_json_is_its_methods() -> None:
    rows = json.loads(cli("methods", "vcpo", "--json").out)["methods"]
    assert [r["name"] for r in rows] == ["seq_tis", "opob", "linear", "norm_clip", "ess"]
