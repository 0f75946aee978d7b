"""The step-level reward of chained sums: against another oracle, through the scorer and its process, and refused elsewhere."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trimtab.lab.plugins.running_totals import LocalShaping, local_steps
from trimtab.records import Outcome
from trimtab.tasks.load import load_task, scorer_spec
from trimtab.tasks.options import JsonlOptions, ReasoningGymOptions, VerifierOptions
from trimtab.tasks.protocol import Prompt, Step
from trimtab.tasks.shaping import ShapingOptions
from trimtab.tasks.verifier import Verifier
from trimtab.tasks.verifier_process import judge

EIGHT = {"min_terms": 8, "max_terms": 8, "min_digits": 1, "max_digits": 1}
LOCAL = ReasoningGymOptions(config=EIGHT, template="{expression}=", compact=True, answer_after=",", shaping=LocalShaping(), eval_size=32)


def oracle(expression: str, response: str) -> dict[int, float]:
    """Position after a right total -> its reward: every total at once, in floats, where NaN is what cannot be read."""
    terms = [float(t.replace(" ", "").replace("--", "").replace("+-", "-")) for t in re.findall(r"(?:^|[+-] )-?\d+", expression)]
    pieces = list(re.finditer(r"[^,]*(?:,|$)", response))[: len(terms) - 1]
    numbers = [re.fullmatch(r"\s*([+-]?\d+)\s*,?", p.group()) for p in pieces]
    said = np.array([float(m[1]) if m else np.nan for m in numbers])
    right = said == np.concatenate([terms[:1], said[:-1]]) + np.array(terms[1 : len(said) + 1])
    return {m.end(1) + p.start(): 1 / (len(terms) - 1) for m, p, ok in zip(numbers, pieces, right, strict=True) if m and ok}


def found(expression: str, response: str) -> dict[int, float]:
    return {step.end or 0: step.reward for step in local_steps(expression, response, ",")}


@pytest.mark.parametrize(
    ("response", "ends"),
    [
        ("11,10,12", [2, 5, 8]),
        ("12,11,13", [5, 8]),  # wrong, then right twice given that
        ("11,10,13", [2, 5]),
        ("11,,12", [2]),  # nothing to go on from
        ("11,1-0,2", [2]),
        (" 11 ,+10,012,12,12", [3, 8, 12]),  # blanks, signs and zeros are no mistake; what follows was not asked for
        ("11", [2]),
        ("", []),
        (",,", []),
        ("1" * 5000, []),
    ],
)
def test_golden(response: str, ends: list[int]) -> None:
    assert found("4 + 7 - 1 + 2", response) == dict.fromkeys(ends, 1 / 3)


@given(
    terms=st.lists(st.integers(-12, 12), min_size=2, max_size=9),
    operators=st.lists(st.sampled_from("+-"), min_size=8, max_size=8),
    slips=st.lists(st.sampled_from([0, 0, 0, 1, -2]), min_size=10, max_size=10),
    cut=st.integers(0, 40),
    noise=st.text(alphabet="0123456789+-, ", max_size=3),
)
def test_the_oracle_agrees(terms: list[int], operators: list[str], slips: list[int], cut: int, noise: str) -> None:
    expression = " ".join([str(terms[0]), *(f"{o} {t}" for o, t in zip(operators, terms[1:], strict=False))])
    total, totals = terms[0], []
    for operator, term, slip in zip(operators, terms[1:], slips, strict=False):
        total += (term if operator == "+" else -term) + slip
        totals.append(str(total))
    whole = ",".join(totals)
    assert len(found(expression, whole)) == sum(slip == 0 for slip in slips[: len(totals)])
    for response in (whole, whole[:cut], whole[:cut] + noise + whole[cut:]):
        assert found(expression, response) == pytest.approx(oracle(expression, response))


def test_the_score_stays_exact_and_the_totals_earn() -> None:
    scorer, prompt = scorer_spec(LOCAL).build(), load_task(LOCAL).prompt(0)
    terms = [int(t) for t in re.findall(r"[+-]?\d", prompt.text)]
    right = [str(sum(terms[: i + 2])) for i in range(7)]
    wrong = [str(sum(terms[: i + 2]) + 1) for i in range(7)]  # one mistake, then carried on
    verdicts = [judge(scorer, prompt, r) for r in (",".join(right), ",".join(wrong), ",".join(right[:3]) + ",", "")]
    assert [v.score for v in verdicts] == [1.0, 0.0, 0.0, 0.0]
    assert [v.outcome for v in verdicts] == [Outcome.CORRECT, Outcome.WRONG, Outcome.UNPARSEABLE, Outcome.UNPARSEABLE]
    assert [sum(s.reward for s in v.steps or ()) for v in verdicts] == pytest.approx([1.0, 6 / 7, 3 / 7, 0.0])
    assert verdicts[3].steps == (), "no step is a reward of 0, not the absence of one"
    final = scorer_spec(LOCAL.model_copy(update={"shaping": ShapingOptions()})).build()
    assert judge(final, prompt, ",".join(right)).steps is None


def test_steps_come_through_the_process() -> None:
    prompt = Prompt(row=0, text="", answer="10", source="", data={"answer": "10", "metadata": {"expression": "4 + 7 - 1"}})
    with Verifier(VerifierOptions(), scorer_spec(LOCAL)) as verifier:
        verifier.submit(0, prompt, "12,11")
        [(_, verdict)] = verifier.poll(30.0)
    assert (verdict.score, verdict.steps, verdict.reward) == (0.0, (Step(0.5, 5),), None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "gcd", "answer_after": ","}, 'it needs task.name = "chain_sum" and task.answer_after'),
        ({"name": "chain_sum"}, 'it needs task.name = "chain_sum" and task.answer_after'),
    ],
)
def test_local_needs_running_totals(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ReasoningGymOptions.model_validate({**options, "shaping": {"kind": "local"}})


def test_local_is_not_for_files() -> None:
    with pytest.raises(ValidationError, match='kind = "local" is for chain_sum of reasoning_gym; a reward function returns a Verdict'):
        JsonlOptions.model_validate({"path": "a.jsonl", "shaping": {"kind": "local"}})
