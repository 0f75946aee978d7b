"""Scorers that misbehave: each response gets the right outcome, and the next one is scored as if nothing had happened."""

import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from trimtab.records import Outcome, StoppedByRule, TrimtabError
from trimtab.tasks.load import scorer_spec
from trimtab.tasks.options import ReasoningGymOptions, VerifierOptions
from trimtab.tasks.protocol import Prompt, Verdict
from trimtab.tasks.reward import FunctionScorer
from trimtab.tasks.verifier import Verifier

PROMPT = Prompt(row=0, text="2+2=", answer="4", source="", data={})

SCORER = """
import ctypes, os, re, signal, sys, time
ME = float(int.from_bytes(os.urandom(2), "big"))
def score(prompt, response, answer, data):
    what, _, path = response.partition(":")
    if what == "hang":
        while True: pass
    if what == "regex": re.match(r"(a+)+$", "a" * 60 + "b")  # for ages, and holds the interpreter lock
    if what == "sleep": time.sleep(3600)
    if what == "raise": raise RuntimeError("boom")
    if what == "exit": sys.exit(3)
    if what == "nan": return float("nan")
    if what == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if what == "segfault": ctypes.string_at(0)
    if what == "memory": return len(bytearray(10 * 2**30))
    if what == "chatter": print("x" * 100_000, flush=True)
    if what == "fork":  # both come back from the fork
        os.fork()
    if what == "spawn":  # children that outlive the call, then hang
        os.open(path, os.O_WRONLY)
        for _ in range(3):
            if os.fork() == 0:
                while True: time.sleep(1)
        while True: pass
    if what == "who": return (ME, "")
    return response == answer
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FunctionScorer:
    (tmp_path / "hostile_scorer.py").write_text(SCORER)
    monkeypatch.syspath_prepend(tmp_path)
    return FunctionScorer("hostile_scorer:score")


@pytest.fixture
def verifier(spec: FunctionScorer) -> Iterator[Verifier]:
    with Verifier(VerifierOptions(deadline_s=0.5, max_failures=100), spec) as v:
        yield v


def verdicts(verifier: Verifier, responses: list[str], within: float = 30.0) -> list[Verdict]:
    """The verdicts on ``responses``, in their order."""
    for key, response in enumerate(responses):
        verifier.submit(key, PROMPT, response)
    found: dict[int, Verdict] = {}
    until = time.monotonic() + within
    while len(found) < len(responses):
        assert time.monotonic() < until, f"only {found} of {responses}"
        for key, verdict in verifier.poll(0.1):
            assert key not in found, "one verdict a response"
            found[key] = verdict
    assert verifier.pending == 0
    return [found[key] for key in range(len(responses))]


@pytest.mark.parametrize(
    ("response", "outcome", "detail"),
    [
        ("hang", Outcome.TIMEOUT, "no verdict within 0.5 s"),
        ("regex", Outcome.TIMEOUT, "no verdict within 0.5 s"),
        ("sleep", Outcome.TIMEOUT, "no verdict within 0.5 s"),
        ("raise", Outcome.ERROR, "RuntimeError: boom"),
        ("exit", Outcome.ERROR, "SystemExit: 3"),
        ("nan", Outcome.ERROR, "the score is nan"),
        ("kill", Outcome.ERROR, "the scorer's process ended with code -9"),
        ("segfault", Outcome.ERROR, "the scorer's process ended with code -11"),
        ("memory", Outcome.ERROR, "MemoryError: "),
        ("chatter", Outcome.WRONG, ""),
        ("fork", Outcome.WRONG, ""),
    ],
)
def test_one_bad_call_costs_only_itself(verifier: Verifier, response: str, outcome: Outcome, detail: str) -> None:
    before, bad, *after = verdicts(verifier, ["4", response, "4", "5", "4"])
    assert (bad.outcome, bad.detail) == (outcome, detail)
    assert (bad.score == 0.0) == (outcome is Outcome.WRONG), "neither an error nor a timeout is a zero"
    assert [v.outcome for v in (before, *after)] == [Outcome.CORRECT, Outcome.CORRECT, Outcome.WRONG, Outcome.CORRECT]


def test_throughput_recovers_after_many_bad_calls(verifier: Verifier) -> None:
    good = verdicts(verifier, ["4", "hang", "kill", "raise"] * 3 + ["4"] * 200)
    assert [v.outcome for v in good[12:]] == [Outcome.CORRECT] * 200
    start = time.monotonic()
    verdicts(verifier, ["4"] * 200)
    assert time.monotonic() - start < 2.0


def test_the_deadline_holds_for_each_call_not_for_the_batch(spec: FunctionScorer, tmp_path: Path) -> None:
    slow = tmp_path / "slow_scorer.py"
    slow.write_text("import time\ndef score(prompt, response, answer, data):\n    time.sleep(0.1)\n    return True\n")
    with Verifier(VerifierOptions(deadline_s=0.5), FunctionScorer("slow_scorer:score")) as verifier:
        assert {v.outcome for v in verdicts(verifier, ["a"] * 12)} == {Outcome.CORRECT}, "1.2 s of calls, none longer than 0.5 s"


def test_children_of_a_scorer_die_with_it(verifier: Verifier, tmp_path: Path) -> None:
    """All of them hold a pipe, which ends with the last of them."""
    os.mkfifo(tmp_path / "held")
    held = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    [_, bad, good] = verdicts(verifier, ["4", f"spawn:{tmp_path / 'held'}", "4"])
    assert (bad.outcome, good.outcome) == (Outcome.TIMEOUT, Outcome.CORRECT)
    assert os.read(held, 1) == b"", "somebody holds it still"
    os.close(held)


def test_close_leaves_no_process_and_no_descriptor(spec: FunctionScorer) -> None:
    me = psutil.Process()
    before, descriptors = {p.pid for p in me.children(recursive=True)}, me.num_fds()
    with Verifier(VerifierOptions(workers=3), spec) as verifier:
        verifier.ready()
        assert len(set(me.children()) - before) >= 3
        verifier.submit(0, PROMPT, "hang")
        verifier.poll()
    assert {p.pid for p in me.children(recursive=True)} <= before
    assert me.num_fds() == descriptors


def test_runs_in_a_thread_that_did_not_start_it(spec: FunctionScorer) -> None:
    """An alarm works on the main thread only, and PDEATHSIG fires when the starting thread ends; this verifier needs neither."""
    made: list[Verifier] = []
    starter = threading.Thread(target=lambda: made.append(Verifier(VerifierOptions(deadline_s=0.5), spec)))
    starter.start()
    starter.join()
    found: list[Verdict] = []
    user = threading.Thread(target=lambda: found.extend(verdicts(made[0], ["4", "hang", "5", "4"])))
    user.start()
    user.join()
    made[0].close()
    assert [v.outcome for v in found] == [Outcome.CORRECT, Outcome.TIMEOUT, Outcome.WRONG, Outcome.CORRECT]


@pytest.mark.parametrize(("response", "last"), [("raise", "error: RuntimeError: boom"), ("kill", "error: the scorer's process ended")])
def test_the_breaker_names_the_scorer_and_the_last_error(spec: FunctionScorer, response: str, last: str) -> None:
    with Verifier(VerifierOptions(max_failures=3), spec) as verifier, pytest.raises(StoppedByRule) as error:
        verdicts(verifier, ["4"] + [response] * 10)
    assert "verifier.max_failures = 3" in str(error.value)
    assert "scorer hostile_scorer:score failed that many times in a row" in str(error.value)
    assert last in str(error.value)


def test_a_scorer_that_dies_while_idle_is_not_restarted_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "import os, threading\nthreading.Timer(0.05, os._exit, [5]).start()\ndef score(prompt, response, answer, data): return 1.0\n"
    (tmp_path / "fading.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    last = "the last with error: the scorer's process ended with code 5"
    with Verifier(VerifierOptions(max_failures=3), FunctionScorer("fading:score")) as verifier, pytest.raises(StoppedByRule, match=last):
        poll_for(verifier, 60)


def poll_for(verifier: Verifier, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        verifier.poll()
        time.sleep(0.05)


def test_the_breaker_counts_failures_in_a_row_only(spec: FunctionScorer) -> None:
    with Verifier(VerifierOptions(max_failures=3), spec) as verifier:
        outcomes = [v.outcome for v in verdicts(verifier, ["raise", "nan", "4"] * 5)]
    assert outcomes == [Outcome.ERROR, Outcome.ERROR, Outcome.CORRECT] * 5


def test_cancelled_responses_get_no_verdict(spec: FunctionScorer) -> None:
    with Verifier(VerifierOptions(deadline_s=0.3, first_deadline_s=0.3), spec) as verifier:
        verifier.ready()
        for key, response in enumerate(["hang", "4", "5", "4"]):
            verifier.submit(key, PROMPT, response)
        verifier.poll()  # all are with the process now
        verifier.submit(4, PROMPT, "5")
        verifier.cancel({0, 1, 4})
        assert verifier.pending == 2
        found = {}
        until = time.monotonic() + 20
        while verifier.pending and time.monotonic() < until:
            found.update(verifier.poll(0.1))
    assert {key: v.outcome for key, v in found.items()} == {2: Outcome.WRONG, 3: Outcome.CORRECT}


def test_work_is_shared_by_the_workers(spec: FunctionScorer) -> None:
    with Verifier(VerifierOptions(workers=2), spec) as verifier:
        verifier.ready()
        assert len({v.score for v in verdicts(verifier, ["who"] * 20)}) == 2


def test_a_scorer_that_never_loads(spec: FunctionScorer, tmp_path: Path) -> None:
    (tmp_path / "sleepy.py").write_text("import time\ntime.sleep(60)\n")
    (tmp_path / "dying.py").write_text("import os\nos._exit(7)\n")
    late = r"verifier.start_s = 1.0: sleepy:score has not loaded in \d s; raise it"
    with Verifier(VerifierOptions(start_s=1.0), FunctionScorer("sleepy:score")) as verifier, pytest.raises(TrimtabError, match=late):
        verifier.ready()
    dead = "scorer dying:score ended with code 7 before it was ready"
    with Verifier(VerifierOptions(), FunctionScorer("dying:score")) as verifier, pytest.raises(TrimtabError, match=dead):
        verifier.ready()


@pytest.mark.slow
def test_a_runaway_call_ends_although_nobody_polls(spec: FunctionScorer) -> None:
    """The CPU limit: two cores' worth of the deadline and a second."""
    with Verifier(VerifierOptions(deadline_s=0.5, first_deadline_s=0.5), spec) as verifier:
        verifier.ready()
        verifier.submit(0, PROMPT, "hang")
        verifier.poll()
        [child] = [p for p in psutil.Process().children() if "verifier_process" in " ".join(p.cmdline())]
        until = time.monotonic() + 60
        while child.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until
            time.sleep(0.1)
        [verdict] = [v for _, v in verifier.poll(1.0)]
    assert (verdict.outcome, verdict.detail) == (Outcome.TIMEOUT, "CPU time of the deadline used up")


def test_64_verdicts_cost_the_caller_under_3_ms() -> None:
    """The caller is a rollout worker between two decode steps."""
    options = ReasoningGymOptions(config={"max_terms": 8}, template="{expression}=", compact=True, answer_after=",")
    entry = {"question": "?", "answer": "25", "metadata": {"expression": "5 - 2 + 3", "num_terms": 8, "difficulty": {"num_terms": (8, 8)}}}
    prompts = [Prompt(row=i, text="5-2+3=", answer="25", source="reasoning_gym/chain_sum", data=dict(entry)) for i in range(8)]
    costs = []
    with Verifier(VerifierOptions(), scorer_spec(options)) as verifier:
        verifier.ready()
        for _ in range(20):
            begun, left = time.thread_time(), 64
            for key in range(64):
                verifier.submit(key, prompts[key // 8], "5,3,25")
                if key % 8 == 7:
                    left -= len(verifier.poll())
            while left:
                left -= len(verifier.poll(1.0))
            costs.append(time.thread_time() - begun)
    assert np.median(costs) < 3e-3


def test_the_scorer_process_is_light(verifier: Verifier) -> None:
    """No torch, and no more memory than NumPy needs: it is started beside every worker and again after every kill."""
    verifier.ready()
    inside = [p for p in psutil.Process().children(recursive=True) if "verifier_process" in " ".join(p.cmdline())]
    child = max(inside, key=lambda p: p.memory_info().rss)
    assert sum(p.memory_info().rss for p in inside if p != child) < 60 * 2**20, "its cage"
    assert "torch" not in Path(f"/proc/{child.pid}/maps").read_text()
    assert child.memory_info().rss < 150 * 2**20
    assert child.rlimit(resource.RLIMIT_AS)[0] < 6 * 2**30
