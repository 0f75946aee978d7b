"""What an evaluation says of itself: graded scores, failures, several samples, and records of before."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.records import Outcome
from trimtab.telemetry.held_out import Answer, HeldOut, moved, pass_at, restored, summarize


def evaluation(scores: dict[int, list[float]], failed: int = 0, timeouts: int = 0, samples: int = 1, rows: int = 0) -> HeldOut:
    """Of prompts' scores; correct from 1 on. ``failed`` more responses have no verdict, the first ``timeouts`` ones timed out."""
    answers = []
    for prompt, of in scores.items():
        for score in of:
            outcome = Outcome.TIMEOUT if len(answers) < timeouts else Outcome.CORRECT if score >= 1 else Outcome.WRONG
            answers.append(Answer(prompt=prompt, score=score, outcome=outcome, length=5, truncated=False))
    counts = Counter([a.outcome.value for a in answers] + ["error"] * failed)
    return summarize(
        answers, counts, version=3, rows=rows or (len(answers) + failed) // samples, samples=samples, threshold=1.0,
        error="KeyError: 'x'" if failed else "",
    )  # fmt: skip


def single(scores: list[float], **more: int) -> HeldOut:
    return evaluation({i: [s] for i, s in enumerate(scores)}, **more)


def test_scores_below_one_that_rise_are_a_rise_although_nothing_is_correct() -> None:
    before, after = (single(np.linspace(mean - 0.15, mean + 0.15, 256).tolist()) for mean in (0.15, 0.71))
    assert after.graded
    assert after.accuracy.mean == 0.0
    what, words = moved(before, after)
    assert what == "rose"
    assert words == f"rose from 0.15 to {after.score.text(2)} on 256 prompts"
    assert after.text().startswith(f"score {after.score.mean:.3f} [")
    assert "accuracy 0.000 [0.000, 0.015], which counts scores of at least 1" in after.text()


def test_zeros_and_ones_are_an_accuracy_and_both_agree() -> None:
    found = single([1.0] * 48 + [0.0] * 16)
    assert not found.graded
    assert found.score == found.accuracy
    assert found.text() == "accuracy 0.750 [0.632, 0.840] on 64 prompts"


def test_a_small_change_is_within_the_noise() -> None:
    before, after = single([1.0] * 32 + [0.0] * 32), single([1.0] * 34 + [0.0] * 30)
    assert moved(before, after) == ("noise", "went from 0.50 to 0.53 [0.41, 0.65], within the noise of 64 prompts")
    assert moved(before, before) == ("noise", "stayed at 0.50 [0.38, 0.62] on 64 prompts")


def test_eleven_of_a_hundred_are_no_hundred() -> None:
    """Issue 9.9: a reward that fails nine times in ten said accuracy 1.0 of 100 rows."""
    found = single([1.0] * 11, failed=89).judged(0.1)
    assert (found.accuracy.mean, found.scored, found.prompts, found.rows, found.errors, found.asked) == (1.0, 11, 11, 100, 89, 100)
    assert found.doubtful
    assert found.text() == "accuracy 1.000 [0.741, 1.000] on 11 of 100 prompts; 89 errors among 100 responses"
    row = found.to_json()
    assert (row["errors"], row["scored"], row["doubtful"], row["error"]) == (89, 11, True, "KeyError: 'x'")


@pytest.mark.parametrize(("failed", "timeouts", "doubtful"), [(0, 0, False), (10, 0, False), (11, 0, True), (5, 6, True)])
def test_what_is_believed(failed: int, timeouts: int, doubtful: bool) -> None:
    found = single([1.0] * (100 - failed), failed=failed, timeouts=timeouts).judged(0.1)
    assert found.doubtful is doubtful
    assert found.failed == (failed + timeouts) / 100


def test_errors_and_timeouts_are_named() -> None:
    assert single([1.0] * 8, failed=1, timeouts=2).failures() == "1 error and 2 timeouts among 9 responses"
    assert single([1.0]).failures() == ""


def test_every_prompt_counts_the_same_whatever_it_lost() -> None:
    found = evaluation({0: [1.0, 1.0, 1.0, 1.0], 1: [0.0]}, failed=3, samples=4, rows=2)
    assert found.accuracy.mean == 0.5
    assert (found.scored, found.asked, found.asks()) == (5, 8, "2 prompts x 4")


def test_pass_at_k_is_the_share_of_choices_with_a_correct_one() -> None:
    found = pass_at([(6, 2), (6, 0), (6, 6), (3, 1)], 6)
    assert sorted(found) == [1, 2, 4, 6]
    counted = [[any(i < c for i in chosen) for chosen in combinations(range(6), 4)] for c in (2, 0, 6)]
    assert found[4] == pytest.approx(np.mean([np.mean(of) for of in counted]))  # the prompt with three verdicts has no four
    assert found[1] == pytest.approx(np.mean([2 / 6, 0, 1, 1 / 3]))
    assert pass_at([(1, 1)], 1) == {}


@given(
    st.dictionaries(st.integers(0, 20), st.lists(st.floats(-1, 1), min_size=1, max_size=4), min_size=1),
    st.integers(0, 5),
    st.integers(1, 4),
)
def test_what_is_written_is_read_again(scores: dict[int, list[float]], failed: int, samples: int) -> None:
    found = evaluation(scores, failed=failed, samples=samples, rows=21).judged(0.1)
    assert HeldOut.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_checkpoint_of_before_keeps_its_accuracies() -> None:
    found = restored({"accuracy": {"before": 0.25, "best": 0.5, "after": 0.75}})
    assert {when: one.accuracy.mean for when, one in found.items()} == {"before": 0.25, "after": 0.75}
    assert moved(found["before"], found["after"]) == ("unknown", "went from 0.25 to 0.75 on an unknown number of prompts")
    new = single([0.5, 0.25])
    assert restored({"held_out": {"before": new.to_json()}}) == {"before": new}
    assert restored({}) == {}


@pytest.mark.parametrize("row", [{}, {"accuracy": None}, {"accuracy": "high"}, {"accuracy": [1, 0]}, {"accuracy": True}])
def test_a_row_without_an_accuracy_is_none(row: dict[str, object]) -> None:
    assert HeldOut.from_json(row) is None  # type: ignore[arg-type]


def test_a_few_sources_are_told_apart() -> None:
    def found(sources: int) -> HeldOut:
        answers = [
            Answer(prompt=p, score=float(p % 3 == 0), outcome=Outcome.WRONG, length=1, truncated=False, source=f"s{p % sources}")
            for p in range(24)
            for _ in range(1 + p % 2)
        ]
        return summarize(answers, {}, version=0, rows=24, samples=2, threshold=1.0, error="")

    two = found(2)
    assert two.by_source == {"s0": 4 / 12, "s1": 4 / 12}
    assert found(3).by_source == {"s0": 1.0, "s1": 0.0, "s2": 0.0}
    assert "score by source: s0 1.000, s1 0.000, s2 0.000" in found(3).text()
    assert HeldOut.from_json(found(3).to_json()).by_source == found(3).by_source
    assert found(1).by_source == found(9).by_source == {}
    assert "by_source" not in found(1).to_json()
