"""Held-out accuracy: its own prompts and randomness, every row counted once."""

import numpy as np
import pytest

from support.rolling import AnyOrderEngine, NearVerifier, Sums, member_key, response_of
from support.tiny import tiny_tokenizer
from trimtab import keyed
from trimtab.records import Slot, StoppedByRule, TrimtabError
from trimtab.rollout.evaluate import EvalResult, evaluate
from trimtab.rollout.options import RolloutOptions
from trimtab.rollout.render import Renderer

LIMIT = 12
OPTIONS = RolloutOptions(group_size=8, prompts_per_batch=4, max_new_tokens=LIMIT)
RENDERER = Renderer(tiny_tokenizer(), context=64, max_new_tokens=LIMIT, stop_ids=(2,))


def run(chaos: int = 0, rows: int | None = None, seed: int = 3) -> tuple[EvalResult, AnyOrderEngine]:
    engine = AnyOrderEngine(slots=5, seed=chaos)
    engine.version = 9
    return evaluate(engine, Sums(), NearVerifier(chaos), RENDERER, OPTIONS, seed, rows=rows), engine


def test_the_figures_are_those_of_the_responses() -> None:
    result, engine = run()
    responses = {row: response_of(member_key(3, Slot(0, row), 0, 0, keyed.EVAL), LIMIT) for row in range(40) if row != 7}  # 7 is too long
    texts = {row: RENDERER.text(ids) for row, ids in responses.items()}
    scored = {row: t for row, t in texts.items() if not t.startswith("9")}
    assert len(scored) < 39, "the data must have errors for this test to mean something"
    correct = [len(t) % 2 == 0 and not t.startswith("8") for t in scored.values()]
    assert result.accuracy == pytest.approx(np.mean(correct)) == pytest.approx(result.score)
    assert result.outcomes["correct"] == sum(correct)
    assert result.outcomes["error"] == 40 - len(scored), "errors are counted, and are no wrong answers"
    assert sum(result.outcomes.values()) == result.rows == 40
    assert result.lengths == tuple(len(responses[row]) for row in scored)
    assert result.truncated == pytest.approx(np.mean([responses[row][-1] != 2 for row in scored]))
    assert result.version == 9
    assert len(engine.seen) == 39, "groups of one"


def test_it_repeats_and_training_randomness_is_not_used() -> None:
    (first, engine), (second, _) = run(chaos=0), run(chaos=5)
    assert first == second
    assert run(seed=4)[0] != first
    training = {member_key(3, Slot(0, row), 0, member) for row in range(40) for member in range(8)}
    assert training.isdisjoint(request.key for request in engine.seen)


def test_rows_are_bounded_by_the_task() -> None:
    assert run(rows=5)[0].rows == 5
    with pytest.raises(TrimtabError, match=r"eval\.prompts = 41: task sums has 40 evaluation rows; lower it"):
        run(rows=41)


def test_a_busy_engine_is_refused() -> None:
    _, engine = run(rows=5)
    for request in list(engine.seen):
        engine.submit(request)
    engine.step()
    assert engine.running
    with pytest.raises(RuntimeError, match="needs an idle engine"):
        evaluate(engine, Sums(), NearVerifier(), RENDERER, OPTIONS, 0)


def test_nothing_scored_is_no_accuracy_at_all() -> None:
    class Broken(NearVerifier):
        def score(self, prompt: object, response: str) -> object:
            raise RuntimeError("down")

    with pytest.raises(StoppedByRule, match=r"^eval: none of 4 responses got a verdict: .*down"):
        evaluate(AnyOrderEngine(), Sums(), Broken(), RENDERER, OPTIONS, 0, rows=4)
