"""Every way in which a reward can fail in training: each is found in metrics, events, summary, report and terminal."""

import json
from collections import Counter
from pathlib import Path

import pytest

from support import faulty_reward, runs
from support.cli import cli
from trimtab.config.load import to_toml
from trimtab.records import Json

EVERY = 5


def configured(folder: Path, kind: str) -> Path:
    config = runs.config(
        folder,
        ["vcpo"],
        runtime={"kind": kind, **({"lag": 1} if kind == "lockstep" else {"max_lag": 2})},
        learner={"batches": 5, "optimizer": {"lr": runs.LR}},
        rollout={"max_new_tokens": 8, "prompts_per_batch": 4, "group_size": 6, "min_group": 5},
        task={**_task(folder), "reward": faulty_reward.REWARD},
        verifier={"deadline_s": 1.0},  # a first response has the default of half a minute
        eval={"prompts": 4},
        telemetry={"tensorboard": False},
    )
    (folder / "run.toml").write_text(to_toml(config))
    return folder / "run.toml"


def _task(folder: Path) -> dict[str, Json]:
    return {"kind": "jsonl", "path": str(folder / "train.jsonl"), "eval_path": str(folder / "eval.jsonl")}


def rows(file: Path) -> list[dict[str, Json]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_each_fault_in_training_is_counted_named_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lockstep: the counts are exact. Evaluations are spared."""
    monkeypatch.chdir(tmp_path)
    file = configured(tmp_path, "lockstep")
    with faulty_reward.switched(tmp_path / "faults", list(faulty_reward.OUTCOMES), EVERY, spared="-2=") as faults:
        ran = cli("train", file, "name=run")
    assert ran.code == 0, ran.err
    assert set(faults.committed) == set(faulty_reward.OUTCOMES), "every fault has been committed"
    run = tmp_path / "runs" / "run"

    batches = rows(run / "metrics.jsonl")
    judged = [b["metrics"] for b in batches if "outcome/error" in b["metrics"]]  # at lag 1 nothing is generated for the last one
    assert len(judged) == len(batches) - 1
    asked = sum(m["outcome/error"][1] for m in judged)
    found = Counter({kind: int(sum(m[f"outcome/{kind}"][0] for m in judged)) for kind in ("error", "timeout")})
    assert asked == faults.calls
    assert found == faults.outcomes
    reasons: Counter[str] = Counter()
    for b in batches:
        reasons.update(b["faults"])
    for fault, n in faults.committed.items():
        outcome, begins = faulty_reward.OUTCOMES[fault]
        assert sum(m for reason, m in reasons.items() if reason.startswith(f"{outcome}: {begins}")) >= n, fault
    lost, retried = (int(sum(b["metrics"][f"rollouts/{name}"] for b in batches)) for name in ("lost", "retried"))
    assert lost + retried >= sum(found.values()), "whatever had no verdict left its group, or its group was generated again"
    assert 0 < lost < sum(found.values())
    assert retried > 0
    assert retried % 6 == 0

    summary = json.loads((run / "summary.json").read_text())["verdicts"]
    assert summary == {
        "asked": asked,
        "errors": found["error"],
        "timeouts": found["timeout"],
        "lost": lost,
        "retried": retried,
        "given_up": sum(b["metrics"]["groups/given_up"] for b in batches),
    }
    [event] = [e for e in rows(run / "events.jsonl") if e["name"] == "verdicts"]
    assert event["severity"] == "warn"
    said = "the verifier failed on 2"  # a fifth of the responses, more or less what a batch ends with
    assert event["message"].startswith(said)
    assert f"warn: batch {event['batch']}: verdicts: {said}" in ran.err
    assert "no verdict on" in ran.err
    report = (run / "report.html").read_text()
    assert said in report
    log = rows(run / "run.log")
    [trace] = [row["trace"] for row in log if "faulty_reward.py" in str(row.get("trace")) and "ValueError" in row["trace"]]
    assert "raised on purpose" in trace


@pytest.mark.slow
def test_workers_tell_the_learner_of_their_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes: what the last batch does not wait for is not in its record, so the counts have a bound instead of a value."""
    monkeypatch.chdir(tmp_path)
    file = configured(tmp_path, "local")
    with faulty_reward.switched(tmp_path / "faults", ["raise", "judge is out"], EVERY, spared="-2=") as faults:
        ran = cli("train", file, "name=run")
    assert ran.code == 0, ran.err
    run = tmp_path / "runs" / "run"
    summary = json.loads((run / "summary.json").read_text())["verdicts"]
    assert 5 * 4 * 5 <= summary["asked"] <= faults.calls
    for kind in ("error", "timeout"):
        told, done = summary[f"{kind}s"], faults.outcomes[kind]
        assert 0 < told <= done
        assert abs(told - summary["asked"] / (2 * EVERY)) <= 3
    assert "verdicts" in {e["name"] for e in rows(run / "events.jsonl")}


@pytest.mark.slow
def test_each_fault_in_evaluations_is_counted_and_told_beside_the_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, during and after training and in ``trimtab eval``: nothing that failed is an answer, and nobody believes what is left."""
    monkeypatch.chdir(tmp_path)
    held_out = 24
    file = configured(tmp_path, "lockstep")
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps({"prompt": f"{i}-2=", "answer": ""}) + "\n" for i in range(held_out)))
    kinds = list(faulty_reward.OUTCOMES)
    overrides = (f"eval.prompts={held_out}", "eval.every=2", "learner.batches=3", "verifier.workers=1")
    with faulty_reward.switched(tmp_path / "faults", kinds, 2, only="-2=") as faults:
        ran = cli("train", file, "name=run", *overrides)
        assert ran.code == 0, ran.err
        in_training = faults.outcomes
        alone = cli("eval", "runs/run")
        in_eval = faults.outcomes - in_training
    run = tmp_path / "runs" / "run"
    rows_found = {row["when"]: row for row in rows(run / "eval.jsonl")}
    assert set(rows_found) == {"before", "during", "after"}
    told = Counter({kind: sum(int(str(row[f"{kind}s"])) for row in rows_found.values()) for kind in ("error", "timeout")})
    assert told == in_training
    for row in rows_found.values():
        errors, timeouts = int(str(row["errors"])), int(str(row["timeouts"]))
        assert int(str(row["scored"])) == held_out - errors - timeouts == row["prompts"]
        assert errors + timeouts == held_out // 2
        assert row["doubtful"] is True
    summary = json.loads((run / "summary.json").read_text())
    for when in ("before", "after"):
        assert (summary[when]["errors"], summary[when]["timeouts"]) == (rows_found[when]["errors"], rows_found[when]["timeouts"])
    assert summary["best"] is None, "an evaluation of which half failed is no best one"
    assert not (run / "best").exists()
    beside = f"among {held_out} responses"
    assert ran.err.count(beside) >= 3
    assert beside in ran.out
    assert beside in (run / "report.html").read_text()
    assert {e["name"] for e in rows(run / "events.jsonl")} >= {"eval_errors"}

    assert alone.code == 0
    assert f"{in_eval['error']} error" in alone.out
    assert beside in alone.out
    assert "not to be believed: 50% failed" in alone.out
    assert set(faults.committed) == set(kinds), "every fault has been committed"
