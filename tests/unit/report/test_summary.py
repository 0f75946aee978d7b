"""summary.json: the documented keys, readable again, extras kept."""

import json

import pytest

from trimtab.records import TrimtabError
from trimtab.report.summary import Summary
from trimtab.store.durable import write_atomic

# fmt: off
KEYS = {
    "accuracy_before", "accuracy_after", "batches", "applied", "skipped", "max_age", "mean_age", "spanning_rollouts",
    "wall_s", "cpu_s", "methods", "seed", "status",
}
# fmt: on


def summary(**fields):
    defaults = {"batches": 4, "applied": 3, "skipped": 1, "max_age": 2, "mean_age": 1.25, "spanning_rollouts": 5, "wall_s": 1.5}
    return Summary(**(defaults | {"cpu_s": 2.0, "methods": ("none",), "seed": 0, "status": "done"} | fields))


def test_it_is_written_with_the_documented_keys_and_read_back(tmp_path):
    written = summary(accuracy_before=0.2, accuracy_after=0.95, reason="", prompts=512)
    path = written.write(tmp_path, write_atomic)
    row = json.loads(path.read_text())
    assert set(row) >= KEYS
    assert (row["accuracy_before"], row["methods"], row["prompts"]) == (0.2, ["none"], 512)
    assert Summary.read(tmp_path) == written


def test_a_run_without_evaluation_says_null(tmp_path):
    assert json.loads(summary().text())["accuracy_after"] is None


def test_a_missing_or_broken_summary_is_one_sentence(tmp_path):
    with pytest.raises(TrimtabError, match=r"summary.json does not exist: the run has not ended"):
        Summary.read(tmp_path)
    (tmp_path / "summary.json").write_text('{"batches": "many"}')
    with pytest.raises(TrimtabError, match=r"is not a summary \(batches: "):
        Summary.read(tmp_path)
    (tmp_path / "summary.json").write_text('{"batch')
    with pytest.raises(TrimtabError, match="is not a summary"):
        Summary.read(tmp_path)
