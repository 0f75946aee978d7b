"""reasoning-gym families: golden scores, disjoint evaluation rows, clear refusals."""

import subprocess
import sys
from decimal import Decimal, InvalidOperation

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.records import Outcome, TrimtabError
from trimtab.tasks.load import load_task, scorer_spec
from trimtab.tasks.options import ReasoningGymOptions
from trimtab.tasks.protocol import Prompt, Scorer, Verdict
from trimtab.tasks.reasoning import ReasoningGymTask
from trimtab.tasks.verifier_process import judge

ONE_DIGIT = {"min_terms": 8, "max_terms": 8, "min_digits": 1, "max_digits": 1}
SUMS = ReasoningGymOptions(config=ONE_DIGIT, template="{expression}=", compact=True, answer_after=",")


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return scorer_spec(SUMS).build()


def sum_prompt(answer: str) -> Prompt:
    return Prompt(row=0, text="", answer=answer, source="", data={"question": "", "answer": answer, "metadata": {}})


def test_prompts_are_the_sums_they_say() -> None:
    task = load_task(SUMS)
    assert len(task) == 10_000
    assert task.eval_size == 512
    for prompt in [*(task.prompt(row) for row in range(100)), *(task.eval_prompt(row) for row in range(100))]:
        expression = prompt.text.removesuffix("=")
        assert len(expression) == 15
        assert set(expression) <= set("0123456789+-")
        assert prompt.answer == str(eval(expression))
    assert any(int(task.prompt(row).answer) < 0 for row in range(100))


@pytest.mark.parametrize(
    ("answer", "response", "score", "outcome"),
    [
        ("25", "5,3,25", 1.0, Outcome.CORRECT),
        ("25", "25", 1.0, Outcome.CORRECT),  # no separator: the whole response
        ("25", "5,3,+025.0", 1.0, Outcome.CORRECT),
        ("7", "+07", 1.0, Outcome.CORRECT),
        ("-9", "-3,-9", 1.0, Outcome.CORRECT),
        ("-9", "-3,9", 0.0, Outcome.WRONG),
        ("9", "-9", 0.0, Outcome.WRONG),  # the family gives 0.5: "9" is inside "-9"
        ("5", "1,12345678", 0.0, Outcome.WRONG),  # the family gives 0.125
        ("25", "25,", 0.0, Outcome.UNPARSEABLE),  # nothing after the separator
        ("25", "", 0.0, Outcome.UNPARSEABLE),
        ("25", "5,=-", 0.0, Outcome.UNPARSEABLE),
        ("25", "5,1e400", 0.0, Outcome.WRONG),
    ],
)
def test_golden_chain_sum(scorer: Scorer, answer: str, response: str, score: float, outcome: Outcome) -> None:
    verdict = judge(scorer, sum_prompt(answer), response)
    assert (verdict.score, verdict.outcome) == (score, outcome), verdict.detail


def test_partial_credit_is_a_switch() -> None:
    partial = scorer_spec(SUMS.model_copy(update={"partial": True})).build()
    assert judge(partial, sum_prompt("5"), "12345678") == Verdict(
        score=0.125, outcome=Outcome.WRONG, detail="'12345678' scored 0.125", seconds=pytest.approx(0, abs=1)
    )
    lenient = scorer_spec(SUMS.model_copy(update={"threshold": 0.1})).build()
    assert judge(lenient, sum_prompt("5"), "12345678").outcome is Outcome.CORRECT


@given(answer=st.integers(-99, 99), response=st.text(alphabet="0123456789+-=,", max_size=25))
def test_correct_means_equal_as_numbers(scorer: Scorer, answer: int, response: str) -> None:
    verdict = judge(scorer, sum_prompt(str(answer)), response)
    try:
        equal = Decimal(response.split(",")[-1]) == answer
    except InvalidOperation:
        equal = False
    assert (verdict.outcome is Outcome.CORRECT) == equal == (verdict.score == 1.0)
    assert verdict.outcome is not Outcome.ERROR


def test_evaluation_prompts_never_train_even_in_a_small_family() -> None:
    small = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}  # 200 distinct prompts
    task = load_task(ReasoningGymOptions(config=small, template="{expression}=", size=2000, eval_size=100))
    held_out = {task.eval_prompt(row).text for row in range(100)}
    training = [task.prompt(row).text for row in range(2000)]
    assert held_out.isdisjoint(training)
    assert len(set(training)) > 50
    assert [task.prompt(row).text for row in range(50)] == training[:50], "a row is the same prompt whenever it is asked for"
    assert [task.prompt(row).row for row in (0, 7)] == [0, 7]


def test_seeds_change_training_rows_and_not_evaluation() -> None:
    tasks = [load_task(SUMS.model_copy(update={"seed": seed})) for seed in (0, 1)]
    rows = [{task.prompt(row).text for row in range(200)} for task in tasks]
    assert len(rows[0] & rows[1]) <= 2, "neighboring seeds must not share their entries shifted by one"
    assert [tasks[0].eval_prompt(r).text for r in range(50)] == [tasks[1].eval_prompt(r).text for r in range(50)]


def test_too_few_distinct_prompts_are_refused_at_load() -> None:
    tiny = {"min_terms": 1, "max_terms": 1, "min_digits": 1, "max_digits": 1}  # ten prompts
    with pytest.raises(TrimtabError, match=r"task.eval_size = 512: chain_sum has so few distinct prompts"):
        load_task(ReasoningGymOptions(config=tiny))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "chain_sums"}, "task.name = 'chain_sums': no such reasoning-gym family; did you mean .*chain_sum"),
        ({"name": "zzz"}, "one of [0-9]+ families"),
        ({"config": {"min_term": 3}}, "task.config.min_term: chain_sum has no such setting; it has .*min_terms"),
        ({"config": {"min_terms": 9}}, r"task.config = \{'min_terms': 9\}: chain_sum refuses it \(max_terms must be"),
        ({"config": {"min_terms": "two"}}, "chain_sum refuses it"),
        ({"config": {"seed": 3}}, "task.config.seed = 3: set task.seed instead"),
        ({"template": "{sum}="}, "task.template = '{sum}=': the row has no field 'sum'; it has .*expression"),
    ],
)
def test_bad_options_are_one_sentence(options: dict, said: str) -> None:
    with pytest.raises(TrimtabError, match=said):
        load_task(ReasoningGymOptions(**options))


def test_chat_prompts_carry_the_conversation() -> None:
    task = load_task(ReasoningGymOptions(chat=True, system="Answer with a number.", size=10, eval_size=4))
    prompt = task.prompt(3)
    assert [m["role"] for m in prompt.messages] == ["system", "user"]
    assert prompt.messages[1]["content"] == prompt.text
    assert prompt.text.startswith("State the final answer")


def test_junk_the_scorer_raises_on_is_unparseable_but_a_broken_scorer_is_an_error() -> None:
    options = ReasoningGymOptions(name="prime_factorization", size=4, eval_size=2)
    prompt = ReasoningGymTask(options).prompt(0)
    scorer = scorer_spec(options).build()
    assert judge(scorer, prompt, prompt.answer).outcome is Outcome.CORRECT
    junk = judge(scorer, prompt, "junk2")  # int("junk2") raises inside the family
    assert (junk.outcome, junk.score) == (Outcome.UNPARSEABLE, 0.0)
    assert "ValueError" in junk.detail
    broken = Prompt(row=0, text="", answer="two", source="", data={"question": "", "answer": "two", "metadata": {}})
    verdict = judge(scorer, broken, "junk2")  # it raises on its own reference answer: no response is to blame
    assert verdict.outcome is Outcome.ERROR
    assert verdict.score != 0.0


def test_loading_the_room_imports_neither_torch_nor_reasoning_gym() -> None:
    code = (
        "import sys, trimtab.tasks.load, trimtab.rollout.options\n"
        "print([m for m in ('torch', 'reasoning_gym', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"


@pytest.mark.slow
def test_every_family_can_be_named() -> None:
    from reasoning_gym.factory import DATASETS

    small = []  # families that repeat themselves: refused, and said so
    for name in sorted(set(DATASETS) - {"composite"}):
        options = ReasoningGymOptions(name=name, size=2, eval_size=1)
        try:
            task = ReasoningGymTask(options)
        except TrimtabError as error:
            small.append(str(error))
            continue
        prompt = task.prompt(1)
        scorer = scorer_spec(options).build()
        if prompt.data["answer"] is not None:
            assert judge(scorer, prompt, prompt.answer).outcome is Outcome.CORRECT, name
        for response in ("junk", "", "[1,2", "+07"):
            verdict = judge(scorer, prompt, response)
            assert verdict.outcome is not Outcome.ERROR, f"{name} on {response!r}: {verdict.detail}"
    assert len(small) < 3
    assert all("so few distinct prompts" in sentence for sentence in small)
