"""Held-out accuracy: its own prompts and randomness, every row counted once."""

import numpy as np
import pytest

from support.rolling import AnyOrderEngine, NearVerifier, Sums, member_key, response_of
from support.tiny import tiny_tokenizer
from trimtab import keyed
from trimtab.records import Outcome, Slot, StoppedByRule, TrimtabError
from trimtab.rollout.evaluate import evaluate, shortfall
from trimtab.rollout.options import EvalOptions, RolloutOptions
from trimtab.rollout.render import Renderer
from trimtab.tasks.protocol import Prompt, Verdict
from trimtab.telemetry.held_out import HeldOut
from trimtab.telemetry.intervals import student_quantile

LIMIT = 12
OPTIONS = RolloutOptions(group_size=8, prompts_per_batch=4, max_new_tokens=LIMIT)
RENDERER = Renderer(tiny_tokenizer(), context=64, max_new_tokens=LIMIT, stop_ids=(2,))


def run(chaos: int = 0, verifier: type[NearVerifier] = NearVerifier, **options: object) -> tuple[HeldOut, AnyOrderEngine]:
    engine = AnyOrderEngine(slots=5, seed=chaos)
    engine.version = 9
    asked = EvalOptions.model_validate({"seed": 3} | options)
    return evaluate(engine, Sums(), verifier(chaos), RENDERER, OPTIONS, asked, threshold=1.0), engine


def test_the_figures_are_those_of_the_responses() -> None:
    result, engine = run()
    responses = {row: response_of(member_key(3, Slot(0, row), 0, 0, keyed.EVAL), LIMIT) for row in range(40) if row != 7}  # 7 is too long
    texts = {row: RENDERER.text(ids) for row, ids in responses.items()}
    scored = {row: t for row, t in texts.items() if not t.startswith("9")}
    assert len(scored) < 39, "the data must have errors for this test to mean something"
    correct = [len(t) % 2 == 0 and not t.startswith("8") for t in scored.values()]
    assert result.accuracy.mean == pytest.approx(np.mean(correct)) == pytest.approx(result.score.mean)
    assert (result.prompts, result.scored) == (len(scored), len(scored))
    assert result.timeouts == sum(t.startswith("8") for t in texts.values())
    assert result.outcomes["correct"] == sum(correct)
    assert result.outcomes["error"] == 40 - len(scored), "errors are counted, and are no wrong answers"
    assert sum(result.outcomes.values()) == result.rows == 40
    assert result.length == pytest.approx(np.mean([len(responses[row]) for row in scored]))
    assert result.truncated == pytest.approx(np.mean([responses[row][-1] != 2 for row in scored]))
    assert result.version == 9
    assert len(engine.seen) == 39, "groups of one"


def test_it_repeats_and_training_randomness_is_not_used() -> None:
    (first, engine), (second, _) = run(chaos=0), run(chaos=5)
    assert first == second
    assert run(seed=4)[0] != first
    training = {member_key(3, Slot(0, row), 0, member) for row in range(40) for member in range(8)}
    assert training.isdisjoint(request.key for request in engine.seen)


def test_a_task_that_holds_out_fewer_prompts_gives_those_and_a_sentence() -> None:
    assert run(prompts=5)[0].rows == 5
    assert run(prompts=41)[0].rows == 40
    assert shortfall(EvalOptions(prompts=41), Sums()) == "eval.prompts = 41: task sums holds out 40 rows, so evaluations use those 40"
    assert shortfall(EvalOptions(prompts=40), Sums()) == ""


def test_a_busy_engine_is_refused() -> None:
    _, engine = run(prompts=5)
    for request in list(engine.seen):
        engine.submit(request)
    engine.step()
    assert engine.running
    with pytest.raises(RuntimeError, match="needs an idle engine"):
        evaluate(engine, Sums(), NearVerifier(), RENDERER, OPTIONS, EvalOptions(), threshold=1.0)


def test_nothing_scored_is_no_accuracy_at_all() -> None:
    class Broken(NearVerifier):
        def score(self, prompt: object, response: str) -> object:
            raise RuntimeError("down")

    with pytest.raises(StoppedByRule, match=r"^eval: none of 4 responses got a verdict: .*down"):
        run(verifier=Broken, prompts=4)


def test_several_samples_of_a_prompt_are_counted_by_prompt() -> None:
    class Graded(NearVerifier):
        def score(self, prompt: Prompt, response: str) -> Verdict:
            if response.startswith("9"):
                raise RuntimeError("nine")
            return Verdict(score=len(response) / 20, outcome=Outcome.CORRECT if len(response) > 6 else Outcome.WRONG)

    result, engine = run(verifier=Graded, samples=4, prompts=20)
    assert len(engine.seen) == 19 * 4
    lengths = {}
    for row in (row for row in range(20) if row != 7):
        texts = [RENDERER.text(response_of(member_key(3, Slot(0, row), 0, m, keyed.EVAL), LIMIT)) for m in range(4)]
        lengths[row] = [len(t) for t in texts if not t.startswith("9")]
    means = [np.mean(of) / 20 for of in lengths.values() if of]
    assert any(0 < len(of) < 4 for of in lengths.values()), "the data must have prompts that lose a sample"
    assert result.score.mean == pytest.approx(np.mean(means))
    assert result.score.high is not None
    assert result.score.high - result.score.mean == pytest.approx(
        student_quantile(len(means) - 1) * np.std(means, ddof=1) / len(means) ** 0.5
    )
    assert result.scored == sum(map(len, lengths.values())) == result.asked - result.errors
    whole = [of for of in lengths.values() if len(of) == 4]
    assert result.pass_at[4] == pytest.approx(np.mean([any(n > 6 for n in of) for of in whole]))
    assert result.graded


def test_the_first_sample_is_that_of_an_evaluation_with_one() -> None:
    (_, one), (_, four) = run(prompts=6), run(prompts=6, samples=4)
    assert {request.key for request in one.seen} < {request.key for request in four.seen}


@pytest.mark.parametrize(("given", "sampling"), [(None, (0.7, 0)), (0.3, (0.3, 0)), (0.0, (1.0, 1))])
def test_the_temperature_is_the_evaluations_own(given: float | None, sampling: tuple[float, int]) -> None:
    how = EvalOptions(temperature=given).rollout(OPTIONS.model_copy(update={"temperature": 0.7})).sampling
    assert (how.temperature, how.top_k) == sampling
    _, engine = run(prompts=3, temperature=given)
    assert {request.sampling.top_k for request in engine.seen} == {sampling[1]}


def test_the_most_probable_token_is_the_same_every_time() -> None:
    with pytest.raises(TrimtabError, match=r"eval\.samples = 4: at eval\.temperature = 0 all responses to a prompt are the same"):
        EvalOptions(temperature=0.0, samples=4)


def test_a_reward_that_fails_nine_times_in_ten_is_not_believed() -> None:
    """Issue 9.9: eval.jsonl said accuracy 1.0 of 100 rows."""

    class Nearly(NearVerifier):
        def score(self, prompt: Prompt, response: str) -> Verdict:
            if prompt.row % 10:
                raise KeyError("down")
            return Verdict(score=1.0, outcome=Outcome.CORRECT)

    result, _ = run(verifier=Nearly)
    assert (result.accuracy.mean, result.scored, result.rows, result.errors) == (1.0, 4, 40, 36)
    assert result.doubtful
    assert "36 errors among 40 responses" in result.text()
    assert result.error == "error: KeyError: 'down'"
    assert not run(verifier=Nearly, max_error_share=0.95)[0].doubtful
