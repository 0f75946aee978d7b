"""What scorers do to be late, to fail in the same way again and again, and to be gone: what is said of it, and what the response gets."""

import logging
import math
import time
from pathlib import Path

import pytest

from trimtab.records import Outcome, StoppedByRule, TrimtabError
from trimtab.tasks.faults import FaultLog
from trimtab.tasks.options import VerifierOptions
from trimtab.tasks.protocol import Prompt, Verdict
from trimtab.tasks.reward import FunctionScorer
from trimtab.tasks.verifier import RELOADS, Verifier

PROMPT = Prompt(row=0, text="2+2=", answer="4", source="", data={})

SCORER = """
import os, signal, time
HERE = os.path.dirname(__file__)
used = False
for command in open(f"{HERE}/loading").read().split():  # what a process does while it loads, one command a process
    first, _, rest = open(f"{HERE}/loading").read().partition(" ")
    open(f"{HERE}/loading", "w").write(rest)
    if first == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if first == "hang": time.sleep(3600)
    if first == "raise": raise ImportError("the share is not mounted")
    break
def helper(response): raise ValueError(f"cannot read {response}")
def score(prompt, response, answer, data):
    global used
    if response == "slow import":
        if not used: time.sleep(1.5)
        used = True
        return 1.0
    if response == "sleep": time.sleep(3600)
    if response == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if response.startswith("raise"): helper(response)
    if response == "none": return None
    if response == "judge is out": return 0.0, "timeout"
    return response == answer
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FunctionScorer:
    (tmp_path / "faulty_scorer.py").write_text(SCORER)
    (tmp_path / "loading").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    return FunctionScorer("faulty_scorer:score")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("trimtab"), "propagate", True)
    caplog.set_level(logging.INFO, "trimtab")
    return caplog


def verdicts(verifier: Verifier, responses: list[str], within: float = 60.0) -> list[Verdict]:
    found: dict[int, Verdict] = {}
    for key, response in enumerate(responses):
        verifier.submit(key, PROMPT, response)
    until = time.monotonic() + within
    while len(found) < len(responses):
        assert time.monotonic() < until, f"only {found}"
        found.update(verifier.poll(0.1))
    return [found[key] for key in range(len(responses))]


def test_what_is_imported_at_the_first_response_has_time_in_every_process(spec: FunctionScorer) -> None:
    with Verifier(VerifierOptions(deadline_s=0.5, first_deadline_s=30.0), spec) as verifier:
        found = verdicts(verifier, ["slow import", "4", "kill", "slow import", "4"])
    assert [v.outcome for v in found] == [Outcome.CORRECT, Outcome.CORRECT, Outcome.ERROR, Outcome.CORRECT, Outcome.CORRECT]


def test_the_deadline_of_the_first_response_is_a_deadline(spec: FunctionScorer) -> None:
    with Verifier(VerifierOptions(deadline_s=0.2, first_deadline_s=0.5), spec) as verifier:
        first, second, third = verdicts(verifier, ["sleep", "4", "sleep"])
    assert (first.outcome, first.detail) == (Outcome.TIMEOUT, "no verdict within 0.5 s, on the first response of a process")
    assert second.outcome is Outcome.CORRECT
    assert (third.outcome, third.detail) == (Outcome.TIMEOUT, "no verdict within 0.2 s")


def test_a_first_deadline_that_is_shorter_than_the_usual_one_shortens_nothing() -> None:
    assert VerifierOptions(deadline_s=50.0, first_deadline_s=1.0).first_s == 50.0


@pytest.mark.parametrize(("timeout", "score"), [("error", math.nan), ("zero", 0.0)])
@pytest.mark.parametrize("response", ["sleep", "judge is out"])
def test_a_timeout_is_an_error_unless_the_run_says_zero(spec: FunctionScorer, timeout: str, score: float, response: str) -> None:
    """Also one that the scorer itself gives: the judge that it asked is out."""
    options = VerifierOptions(deadline_s=0.5, timeout=timeout)
    with Verifier(options, spec) as verifier:
        _, late = verdicts(verifier, ["4", response])
    assert late.outcome is Outcome.TIMEOUT, "counted as what it is"
    assert late.score == pytest.approx(score, nan_ok=True)


@pytest.mark.parametrize(
    ("loading", "why"),
    [("kill", "ended with code -9 before it was ready"), ("raise", "the share is not mounted"), ("hang", "has not loaded in")],
)
def test_a_replacement_that_does_not_load_is_a_fault_and_another_is_started(
    spec: FunctionScorer, tmp_path: Path, loading: str, why: str, said: pytest.LogCaptureFixture
) -> None:
    with Verifier(VerifierOptions(start_s=30.0 if loading != "hang" else 3.0), spec) as verifier:
        verifier.ready()
        (tmp_path / "loading").write_text(f"{loading} {loading} ")
        found = verdicts(verifier, ["4", "kill", "4"])
    assert [v.outcome for v in found] == [Outcome.CORRECT, Outcome.ERROR, Outcome.CORRECT]
    assert sum(why in m for m in said.messages) == 2


def test_a_scorer_that_loads_no_more_stops_the_run(spec: FunctionScorer, tmp_path: Path) -> None:
    with Verifier(VerifierOptions(), spec) as verifier:
        verifier.ready()
        (tmp_path / "loading").write_text("raise " * 50)
        with pytest.raises(StoppedByRule, match=f"had loaded before, and now {RELOADS} processes in a row did not: .*not mounted"):
            verdicts(verifier, ["kill", "4"])


def test_a_scorer_that_has_never_loaded_is_an_error_of_the_configuration(spec: FunctionScorer, tmp_path: Path) -> None:
    (tmp_path / "loading").write_text("kill ")
    with Verifier(VerifierOptions(), spec) as verifier, pytest.raises(TrimtabError, match="code -9 before it was ready") as error:
        verifier.ready()
    assert error.value.exit_code == 2


def test_tracebacks_are_told_once_a_kind_and_counted(spec: FunctionScorer, said: pytest.LogCaptureFixture) -> None:
    responses = [f"raise {n}" for n in range(12)] + ["none"] * 3 + ["4"]
    with Verifier(VerifierOptions(), spec) as verifier:
        verdicts(verifier, responses)
    [(said_with_it, trace)] = [(r.getMessage(), r.trace) for r in said.records if hasattr(r, "trace")]
    assert said_with_it == "scorer faulty_scorer:score: error: ValueError: cannot read raise 0"
    assert trace.startswith("Traceback (most recent call last)")
    assert 'faulty_scorer.py", line' in trace
    assert "in helper" in trace
    assert [m.removeprefix("scorer faulty_scorer:score: ") for m in said.messages] == [
        "error: ValueError: cannot read raise 0",
        "error: ValueError: cannot read raise 9 (10 times so far)",
        "error: the reward function returned None, not a number",
        "12 times in all: ValueError",
        "3 times in all: error: the reward function returned None, not a number",
    ]


def test_the_log_of_faults_stays_short_whatever_comes(said: pytest.LogCaptureFixture) -> None:
    faults = FaultLog("f:g")
    for n in range(5000):
        faults.note(Verdict(score=math.nan, outcome=Outcome.ERROR, detail=f"the reward function returned {n}, not a number"))
    assert len(said.messages) < 210
    assert said.messages[-1].endswith("(1000 times so far)")
