"""What makes two runs the same run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support import runs
from trimtab.config.load import load
from trimtab.config.run import RunConfig
from trimtab.lab import keys
from trimtab.lab.numerics import NUMERICS


def quickstart(*changes: str) -> RunConfig:
    return load("quickstart", ["runtime.kind=lockstep", "runtime.lag=4", *changes])


def key(config: RunConfig, **changes: object) -> str:
    arguments: dict[str, object] = {"runner": "train", "options": {}} | changes
    return keys.key(config, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    ["name=other", "store.every=7", "store.rollouts=false", "telemetry.timeline=false", "verifier.workers=2", "learner.keep_refused=false"],
)
def test_names_and_durability_do_not_matter(change: str) -> None:
    assert key(quickstart(change)) == key(quickstart())


@pytest.mark.parametrize(
    "change",
    ["seed=1", "runtime.lag=5", 'methods=["seq_tis", "grpo"]', "learner.batches=399", "task.size=99", "telemetry.detectors.ess.floor=0.2"],
)
def test_what_makes_other_numbers_matters(change: str) -> None:
    assert key(quickstart(change)) != key(quickstart())


def test_bundles_and_defaults_are_written_out() -> None:
    written = 'methods=[{ name = "seq_tis", c = 8.0 }, "opob", "linear", { name = "norm_clip", max_norm = 1.0 }, "ess"]'
    assert key(quickstart(written)) == key(quickstart('methods=["vcpo"]'))
    assert key(quickstart("learner.epochs=1")) == key(quickstart())


def test_numerics_runner_and_options_matter() -> None:
    found = {key(quickstart()), key(quickstart(), numerics=NUMERICS + 1), key(quickstart(), options={"a": 1})}
    found.add(key(quickstart(), runner="support.laboratory:run"))
    assert len(found) == 4


def test_folders_count_by_what_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = (runs.config(tmp_path / name, ["vcpo"]) for name in "ab")
    assert one.model != two.model
    assert key(one) == key(two)
    train = tmp_path / "b" / "train.jsonl"
    train.write_text(train.read_text() + '{"prompt": "1=", "answer": ""}\n')
    keys._tree.cache_clear()
    assert key(one) != key(two)


def test_other_peoples_code_counts_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "my_reward_of_lab.py"
    module.write_text("def score(prompt, response, answer, data): return 1.0\n")
    (tmp_path / "runs").mkdir()
    config = runs.config(tmp_path / "runs", ["vcpo"], task={"reward": "my_reward_of_lab:score"})
    first = key(config)
    module.write_text("def score(prompt, response, answer, data): return 0.0\n")
    assert key(config) != first
    assert "my_reward_of_lab" not in sys.modules


def test_a_method_in_one_file_counts_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered as ``pip install`` leaves it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    info = tmp_path / "my_method_of_lab-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-method-of-lab\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[trimtab.methods]\nmine_of_lab = my_method_of_lab:Mine\n")
    module = tmp_path / "my_method_of_lab.py"
    module.write_text("from trimtab.methods.norm_clip import NormClip\nclass Mine(NormClip):\n    name = 'mine_of_lab'\n")
    config = quickstart('methods=["seq_tis", "grpo", "mine_of_lab"]')
    first = key(config)
    module.write_text(module.read_text() + "    memory = 2\n")
    assert key(config) != first
    monkeypatch.delitem(sys.modules, "my_method_of_lab")
