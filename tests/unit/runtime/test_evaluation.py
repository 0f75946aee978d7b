"""Evaluations beside a run: what is asked, what becomes of an evaluator that dies, and of questions that a run leaves open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from support.tiny import tiny_policy
from trimtab.config.run import EvalOptions
from trimtab.records import Outcome, StoppedByRule, TrimtabError, Version
from trimtab.rollout.launch import WorkerProcess
from trimtab.rollout.messages import Broken, Evaluate, Evaluated
from trimtab.runtime.evaluation import AT_ONCE, Evaluations, best_of
from trimtab.runtime.session import Session
from trimtab.store.run_folder import RunFolder
from trimtab.telemetry.clock import Clock
from trimtab.telemetry.held_out import Answer, HeldOut, summarize


class Evaluator:
    """An evaluator's process in the test's hands: ``asked`` is what it was sent, ``say`` what it will have said, ``dead`` its end."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.said: list[object] = []
        self.dead = self.killed = False

    def send(self, message: object) -> None:
        if self.dead:
            raise BrokenPipeError
        assert isinstance(message, Evaluate)
        assert (Path(message.folder) / "config.json").exists()
        self.asked.append(message.batch)

    def answer(self, batch: int, version: int, correct: float, score: float = 0.5, failed: int = 0) -> None:
        """An evaluation of 100 prompts: the share ``correct`` of those that did not fail, each of them with ``score``."""
        n = 100 - failed
        outcomes = [Outcome.CORRECT] * round(correct * n) + [Outcome.WRONG] * (n - round(correct * n))
        answers = [Answer(prompt=i, score=score, outcome=o, length=1, truncated=False) for i, o in enumerate(outcomes)]
        counts = {"error": failed}
        found = summarize(answers, counts, version=version, rows=100, samples=1, threshold=1.0, error="")
        self.said.append(Evaluated(batch, found.judged(0.1), 0.1))

    def messages(self, seconds: float = 0.0) -> Iterator[object]:
        while self.said:
            yield self.said.pop(0)
        if self.dead:
            raise EOFError

    def interrupt(self) -> None:
        self.dead = True

    def end(self) -> str:
        self.killed = True
        return "killed by signal 9"

    def kill(self) -> None:
        self.killed = True


class World:
    """A session that stands after ``batch`` batches, and the evaluators that were started."""

    def __init__(self, path: Path, restarts: int = 1, **options: object) -> None:
        self.evaluators: list[Evaluator] = []
        self.rows: list[tuple[int, int, float]] = []
        self.folder = RunFolder.create(path) if not path.exists() else RunFolder(path, fresh=False)
        self.session = SimpleNamespace(
            config=SimpleNamespace(
                eval=EvalOptions.model_validate({"every": 2, "prompts": 4} | options), learner=SimpleNamespace(batches=100)
            ),
            folder=self.folder,
            consumed=0,
            version=Version(0, 0),
            clock=Clock(),
            evaluated=self._record,
        )
        self.restarts = restarts

    def _record(self, when: str, batch: int, found: HeldOut, seconds: float) -> None:
        assert when == "during"
        self.rows.append((batch, found.version, found.accuracy.mean))
        with open(self.folder.eval, "a") as file:
            file.write(json.dumps({"batch": batch, "when": when}) + "\n")

    def start(self, consumed: int = 0) -> Evaluations:
        self.session.consumed = consumed
        policy = tiny_policy(hidden=8, layers=1, heads=2, kv_heads=1, intermediate=8)
        return Evaluations(cast(Session, self.session), policy, self._launch, self.restarts)

    def _launch(self) -> WorkerProcess:
        self.evaluators.append(Evaluator())
        return cast(WorkerProcess, self.evaluators[-1])

    def batch(self, evaluations: Evaluations, number: int) -> None:
        self.session.consumed, self.session.version = number, Version(0, number - 1)
        evaluations.after_batch()

    def kept(self, *answers: tuple[float, float, int]) -> int | None:
        """Ask as often as there are answers (correct, score, failed); the batch whose model is kept in the end."""
        evaluations = self.start()
        for i, (correct, score, failed) in enumerate(answers, start=1):
            self.batch(evaluations, 2 * i)
            self.evaluators[0].answer(2 * i, 2 * i - 1, correct, score, failed)
            self.batch(evaluations, 2 * i + 1)
        evaluations.close()
        return self.best()

    def best(self) -> int | None:
        found = best_of(self.folder)
        return None if found is None else found[0]

    def open(self) -> list[str]:
        return sorted(p.name for p in (self.folder.path / "eval").glob("*")) if (self.folder.path / "eval").exists() else []


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "run")


def test_it_asks_when_due_and_keeps_the_best(world: World) -> None:
    evaluations = world.start()
    for batch in range(1, 7):
        world.batch(evaluations, batch)
    [evaluator] = world.evaluators
    assert evaluator.asked == [2, 4, 6]
    for batch, accuracy in ((2, 0.25), (4, 0.75), (6, 0.5)):
        evaluator.answer(batch, batch - 1, accuracy, score=accuracy)
    evaluations.finish()
    assert world.rows == [(2, 1, 0.25), (4, 3, 0.75), (6, 5, 0.5)]
    assert world.best() == 4
    assert (world.folder.path / "best" / "config.json").exists()
    evaluations.close()
    assert evaluator.killed
    assert not (world.folder.path / "eval").exists()


def test_the_best_is_by_score_and_of_equals_the_later_one(world: World) -> None:
    """Issue 9.6: scores rose from .15 to .71, no response was ever correct, and the first evaluation was kept."""
    assert world.kept((0.0, 0.15, 0), (0.0, 0.71, 0), (0.0, 0.4, 0)) == 4


def test_of_equals_the_later_one_is_kept(world: World) -> None:
    assert world.kept((0.0, 0.5, 0), (0.0, 0.5, 0), (0.0, 0.4, 0)) == 4


def test_the_best_may_be_by_accuracy(tmp_path: Path) -> None:
    assert World(tmp_path / "a", best_by="accuracy").kept((0.5, 0.2, 0), (0.25, 0.9, 0)) == 2
    assert World(tmp_path / "b", best_by="score").kept((0.5, 0.2, 0), (0.25, 0.9, 0)) == 4
    assert World(tmp_path / "c", keep_best=False).kept((0.5, 0.2, 0)) is None


def test_an_evaluation_that_is_not_believed_is_never_the_best(world: World) -> None:
    """Issue 9.9: the eleven responses that the reward did not fail on were all correct."""
    assert world.kept((0.5, 0.5, 10), (1.0, 1.0, 89)) == 2


def test_the_best_is_on_record_beside_the_model_and_survives_a_resume(world: World) -> None:
    assert world.kept((0.0, 0.5, 0)) == 2
    found = best_of(world.folder)
    assert found is not None
    assert (found[1].score.mean, found[1].version) == (0.5, 1)
    again = World(world.folder.path)
    assert again.kept((0.0, 0.4, 0)) == 2


def test_the_last_batch_is_evaluated_by_the_run_itself(world: World) -> None:
    world.session.config.learner.batches = 2
    evaluations = world.start()
    world.batch(evaluations, 2)
    assert world.evaluators == []
    evaluations.close()


def test_a_slow_evaluator_is_not_asked_without_end(world: World) -> None:
    evaluations = world.start()
    for batch in range(1, 41):
        world.batch(evaluations, batch)
    assert world.evaluators[0].asked == [2 * (i + 1) for i in range(AT_ONCE)]
    assert len(world.open()) == AT_ONCE


def test_an_evaluator_that_dies_is_replaced_and_asked_again(world: World) -> None:
    evaluations = world.start()
    world.batch(evaluations, 2)
    world.evaluators[0].answer(2, 1, 0.5)
    world.batch(evaluations, 4)
    world.evaluators[0].dead = True
    world.batch(evaluations, 6)
    assert world.evaluators[1].asked == [4, 6]
    world.evaluators[1].dead = True
    with pytest.raises(StoppedByRule, match=r"eval: the evaluator died \(killed by signal 9\), restarts used up"):
        evaluations.finish()


def test_an_evaluator_that_breaks_is_replaced_unless_the_user_must_act(world: World) -> None:
    evaluations = world.start()
    world.batch(evaluations, 2)
    world.evaluators[0].said.append(Broken("MemoryError", 0))
    world.batch(evaluations, 3)
    assert world.evaluators[1].asked == [2]
    world.evaluators[1].said.append(Broken("task.eval_path is gone", 2))
    with pytest.raises(TrimtabError, match=r"^eval: task.eval_path is gone"):
        evaluations.finish()


def test_what_a_run_leaves_open_is_asked_again_by_the_next(tmp_path: Path) -> None:
    first = World(tmp_path / "run")
    evaluations = first.start()
    for batch in (2, 4, 6, 8):
        first.batch(evaluations, batch)
    first.evaluators[0].answer(2, 1, 0.5)
    first.batch(evaluations, 9)
    first.folder.path.joinpath("eval", "000002-000001").mkdir()  # killed between the record and the end of its folder
    evaluations.close()
    assert first.open() == ["000002-000001", "000004-000003", "000006-000005", "000008-000007"]

    second = World(tmp_path / "run")
    again = second.start(consumed=6)  # the checkpoint: batch 8 is of a dead lineage
    assert second.evaluators[0].asked == [4, 6]
    assert second.open() == ["000004-000003", "000006-000005"]
    for batch in (4, 6):
        second.evaluators[0].answer(batch, batch - 1, 0.1 * batch)
    again.finish()
    assert [batch for batch, _, _ in second.rows] == [4, 6]
