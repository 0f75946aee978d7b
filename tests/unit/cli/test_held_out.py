"""Held-out scores from the run to everything that tells of them: terminal, eval.jsonl, summary.json, report, ``trimtab eval``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from support import runs
from support.cli import Ran, cli
from trimtab.config.load import to_toml
from trimtab.records import Json


def train(home: Path, reward: str, **tables: Mapping[str, Json]) -> Ran:
    """A run of four batches with that reward, evaluated after two, in ``home``."""
    task: dict[str, Json] = {"kind": "jsonl", "path": str(home / "train.jsonl"), "eval_path": str(home / "eval.jsonl")}
    tables = {
        "task": task | {"reward": f"support.rewards:{reward}"},
        "runtime": {"kind": "lockstep", "lag": 1},
        "learner": {"batches": 4, "optimizer": {"lr": 1e-3}},
        "rollout": {"max_new_tokens": 8, "prompts_per_batch": 4, "group_size": 4},
        "eval": {"prompts": 256, "every": 2},
        "verifier": {"deadline_s": 2.0, "first_deadline_s": 2.0},
    } | tables
    (home / "tiny.toml").write_text(to_toml(runs.config(home, ["vcpo"], **tables)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        return cli("train", "tiny.toml", "name=done")


def rows(home: Path, name: str) -> list[dict[str, Json]]:
    return [json.loads(line) for line in (home / "runs" / "done" / name).read_text().splitlines()]


def page(home: Path) -> str:
    text = (home / "runs" / "done" / "report.html").read_text()
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<(svg|style).*?</\1>", "", text, flags=re.DOTALL)))


def test_scores_that_are_never_correct_are_seen_everywhere(tmp_path: Path) -> None:
    """Issue 9.6: terminal, report and summary said accuracy 0.000, and best/ kept the first evaluation."""
    ran = train(tmp_path, "graded")
    assert ran.code == 0, ran.err
    before, during, after = rows(tmp_path, "eval.jsonl")
    assert [row["when"] for row in (before, during, after)] == ["before", "during", "after"]
    for row in (before, during, after):
        assert (row["accuracy"], row["graded"], row["rows"], row["prompts"], row["errors"]) == (0.0, True, 8, 8, 0)
        score, low, high = (float(str(row[name])) for name in ("score", "score_low", "score_high"))
        assert low < score < high
        assert f"held-out score {score:.3f} [{low:.3f}, {high:.3f}] on 8 prompts; accuracy 0.000 [0.000, 0.324]" in ran.err
    assert re.search(rf"held-out score {before['score']:.3f} -> {after['score']:.3f} \[.* 8 prompts; accuracy 0.000", ran.out)
    assert "which counts scores of at least 1" in ran.out
    summary = json.loads((tmp_path / "runs" / "done" / "summary.json").read_text())
    assert (summary["score_before"], summary["score_after"]) == (before["score"], after["score"])
    assert summary["after"] == {k: after[k] for k in summary["after"]}
    assert (summary["best"]["batch"], summary["best"]["score"]) == (2, during["score"])
    assert re.search(rf"best    runs/done/best: score {during['score']:.3f} \[.*\] after 2 batches", ran.out)
    assert "Held-out score" in page(tmp_path)
    assert "stayed at 0.00" not in page(tmp_path)
    assert f"best/ holds the model after batch 2, with score {during['score']:.2f}" in page(tmp_path)
    again = cli("eval", tmp_path / "runs" / "done", "eval.samples=3")
    assert re.search(
        r"held-out score 0\.\d+ \[.*\] on 8 prompts x 3; accuracy 0.000 .*; pass@1 0.000, pass@2 0.000, pass@3 0.000", again.out
    )


def test_fewer_held_out_prompts_than_asked_for_are_said(tmp_path: Path) -> None:
    """Issue 9.8: eval.prompts = 256 with 20 rows."""
    sentence = "eval.prompts = 256: task train holds out 8 rows, so evaluations use those 8"
    ran = train(tmp_path, "digit", learner={"batches": 1})
    assert f"info: batch 0: eval_prompts: {sentence}" in ran.err
    assert ran.err.count(sentence) == 1
    assert [row["message"] for row in rows(tmp_path, "events.jsonl") if row["name"] == "eval_prompts"] == [sentence]
    assert sentence in page(tmp_path)
    assert sentence in cli("eval", tmp_path / "runs" / "done").err
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert sentence in cli("train", "tiny.toml", "--dry-run").out


def test_failures_of_the_reward_in_evaluations_are_seen_everywhere(tmp_path: Path) -> None:
    """Issue 9.9: accuracy 1.0 "of 100 rows", of which 89 were errors; the best of the run."""
    ran = train(tmp_path, "fails_held_out")
    assert ran.code == 0, ran.err
    for row in rows(tmp_path, "eval.jsonl"):
        assert (row["rows"], row["errors"], row["timeouts"], row["doubtful"]) == (8, 6, 1, True)
        assert "the judge is down" in str(row["error"])
    failures = "6 errors and 1 timeout among 8 responses"
    assert ran.err.count(f"not believed (eval.max_error_share): {failures}") == 3
    assert failures in ran.out
    assert "the first and the last evaluation is not to be believed" in ran.out
    assert not (tmp_path / "runs" / "done" / "best").exists()
    summary = json.loads((tmp_path / "runs" / "done" / "summary.json").read_text())
    assert (summary["after"]["errors"], summary["after"]["timeouts"], summary["after"]["doubtful"], summary["best"]) == (6, 1, True, None)
    assert f"Not believed, because too many of their responses failed: the evaluations after batch 0, 2, 4 ({failures})." in page(tmp_path)
    assert "eval_errors" in page(tmp_path)
    told = cli("eval", tmp_path / "runs" / "done")
    assert failures in told.out
    assert "not to be believed: 88% failed" in told.out
