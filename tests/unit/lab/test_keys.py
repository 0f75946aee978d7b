"""What makes two runs the same run, and a guard of the numbers behind it."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from support import runs
from trimtab.config.load import load, override, read_table, validate
from trimtab.config.run import RunConfig
from trimtab.lab import keys
from trimtab.lab.numerics import NUMERICS
from trimtab.report.runfiles import load as read_run

# NUMERICS -> what 20 batches gave: the tokens sampled, and a few means to two digits. A change of either means other numbers from the
# same configuration: raise NUMERICS and write the new digest beside it, or find out what has changed unintendedly.
GOLDEN = {1: "be8b14aa585dab12"}


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


@pytest.mark.slow
def test_twenty_batches_are_what_they_were(tmp_path: Path) -> None:
    table = override(
        read_table("quickstart"),
        ["runtime.kind=lockstep", "runtime.lag=2", "learner.batches=20", "rollout.prompts_per_batch=4", "eval.prompts=8"],
    )
    runs.train(validate(table), tmp_path / "run")
    tokens = sorted(runs.tokens(tmp_path / "run").items())
    run = read_run(tmp_path / "run", "run")
    means = [
        f"{run.mean(name):.1e}" for name in ("ess/ratio", "kl/k3", "accuracy/train", "opob/baseline", "step/multiplier", "length/mean")
    ]
    digest = hashlib.sha256(json.dumps([tokens, means]).encode()).hexdigest()[:16]
    assert GOLDEN.get(NUMERICS) == digest, means
