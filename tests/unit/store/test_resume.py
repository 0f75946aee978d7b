"""After a resume the run folder looks as it did at the checkpoint, and nothing was thrown away."""

import json
from pathlib import Path

import pytest

from trimtab.records import TrimtabError
from trimtab.store.checkpoint import numbers, save
from trimtab.store.jsonl import JsonLines, read_jsonl
from trimtab.store.resume import prepare_resume
from trimtab.store.rollout_log import RolloutLog, read
from trimtab.store.run_folder import EVALUATION, RunFolder


def run(folder: RunFolder, first: int, last: int, make_group, every: int = 4) -> None:
    """Batches first..last-1 as the runtime writes them: logs, then the checkpoint of what they add up to."""
    with JsonLines(folder.metrics) as metrics, JsonLines(folder.events) as events, RolloutLog(folder.rollouts) as log:
        for batch in range(first, last):
            log.append(batch, batch, [make_group(batch)])
            metrics.append({"batch": batch})
            if batch % 3 == 0:
                events.append({"batch": batch, "kind": "lag"})
            if (batch + 1) % every == 0:
                log.flush()
                folder.sync_logs()
                save(folder.checkpoints, batch + 1, {"run": {"consumed": batch + 1}}, keep=2)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path / "run")
    folder.config_json.write_text("{}")
    return folder


def test_logs_are_cut_to_the_checkpoint_and_the_rest_is_kept(folder: RunFolder, make_group) -> None:
    run(folder, 0, 11, make_group)
    with RunFolder.open(folder.path) as again:
        point = prepare_resume(again)
        assert (point.number, point.parts, point.passed_over) == (8, {"run": {"consumed": 8}}, {})
        assert point.moved == {"metrics.jsonl": 3, "events.jsonl": 1, "rollouts": 6}
        assert [r["batch"] for r in read_jsonl(again.metrics)] == list(range(8))
        assert [e.batch for e in read(again.rollouts)] == list(range(8))
        assert [r["batch"] for r in read_jsonl(point.orphans / "metrics.jsonl")] == [8, 9, 10]
        assert [e.batch for e in read(point.orphans / "rollouts")] == [8, 9, 10]
        run(again, point.number, 12, make_group)
    assert [r["batch"] for r in read_jsonl(folder.metrics)] == list(range(12))
    assert [e.batch for e in read(folder.rollouts)] == list(range(12))
    assert numbers(folder.checkpoints) == [8, 12]


def test_resuming_twice_from_one_checkpoint_keeps_both_lineages(folder: RunFolder, make_group) -> None:
    run(folder, 0, 6, make_group)
    with RunFolder.open(folder.path) as again:
        first = prepare_resume(again)
        run(again, first.number, 7, make_group)
        second = prepare_resume(again)
    assert [[r["batch"] for r in read_jsonl(p.orphans / "metrics.jsonl")] for p in (first, second)] == [[4, 5], [4, 5, 6]]


def test_the_evaluation_of_the_restored_weights_stays(folder: RunFolder, make_group) -> None:
    run(folder, 0, 7, make_group)
    with JsonLines(folder.eval) as evals:
        for consumed in (0, 4, 6):
            evals.append({"batch": consumed, "accuracy": 0.5})
    with RunFolder.open(folder.path) as again:
        assert prepare_resume(again).number == 4
    assert [r["batch"] for r in read_jsonl(folder.eval)] == [0, 4]


@pytest.mark.parametrize(("batch", "stays"), [(4, True), (6, False)])
def test_a_best_model_of_weights_that_were_taken_back_goes_to_the_orphans(folder: RunFolder, make_group, batch: int, stays: bool) -> None:
    run(folder, 0, 7, make_group)
    folder.best.mkdir()
    (folder.best / EVALUATION).write_text(json.dumps({"batch": batch, "accuracy": 0.5}))
    with RunFolder.open(folder.path) as again:
        point = prepare_resume(again)
    assert point.number == 4
    assert folder.best.exists() is stays
    assert (point.orphans / "best" / EVALUATION).exists() is not stays


def test_a_clean_stop_moves_nothing(folder: RunFolder, make_group) -> None:
    run(folder, 0, 8, make_group)
    with RunFolder.open(folder.path) as again:
        point = prepare_resume(again)
    assert (point.number, point.moved) == (8, {})
    assert not folder.orphans.exists()


def test_a_corrupt_checkpoint_goes_to_the_orphans_and_its_number_is_free_again(folder: RunFolder, make_group) -> None:
    run(folder, 0, 9, make_group)
    (folder.checkpoints / "000008" / "run.json").write_bytes(b'{"consumed": 9}')
    with RunFolder.open(folder.path) as again:
        point = prepare_resume(again)
        assert point.number == 4
        assert "000008/run.json is corrupt" in point.passed_over[8]
        assert [r["batch"] for r in read_jsonl(again.metrics)] == list(range(4))
        assert (point.orphans / "checkpoints" / "000008" / "run.json").exists()
        run(again, 4, 8, make_group)
    assert numbers(folder.checkpoints) == [4, 8]


def test_without_a_checkpoint_nothing_is_touched(folder: RunFolder, make_group) -> None:
    run(folder, 0, 3, make_group)
    with RunFolder.open(folder.path) as again, pytest.raises(TrimtabError, match="the run ended before its first"):
        prepare_resume(again)
    assert [r["batch"] for r in read_jsonl(folder.metrics)] == [0, 1, 2]
    assert not folder.orphans.exists()


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(folder: RunFolder) -> None:
    with JsonLines(folder.eval) as evals:
        evals.append({"batch": 0, "accuracy": 0.5})
    with RunFolder.open(folder.path) as again:
        assert prepare_resume(again) is None
    assert list(read_jsonl(folder.eval)) == []
    assert list(read_jsonl(folder.orphans / "000000-1" / "eval.jsonl")) == [{"batch": 0, "accuracy": 0.5}]


def test_it_needs_the_lock(folder: RunFolder) -> None:
    with pytest.raises(RuntimeError, match="needs the run folder's lock"):
        prepare_resume(folder)
