"""What a reward does to the processes around it: it neither stops nor outlives the run, and what it prints drowns nobody."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.caged import namespaces
from trimtab.records import Outcome, TrimtabError
from trimtab.tasks.isolation import Isolation
from trimtab.tasks.options import VerifierOptions
from trimtab.tasks.printed import SIZE, PrintedLog, Ring, readable
from trimtab.tasks.protocol import Prompt, Verdict
from trimtab.tasks.reward import FunctionScorer
from trimtab.tasks.verifier import Verifier

pytestmark = pytest.mark.chaos

SCORER = """
import os, signal, sys, time
def score(prompt, response, answer, data):
    what, _, argument = response.partition(":")
    if what == "daemon":  # a session of its own, and nobody's child
        os.open(argument, os.O_WRONLY)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0: time.sleep(120)
            os._exit(0)
        os.wait()
    if what == "signal":
        number, target = map(int, argument.split(","))
        try: os.kill(target, number)
        except (ProcessLookupError, PermissionError): return 0.25
    if what == "parent": os.kill(os.getppid(), int(argument))
    if what == "print":
        block = b"x" * 65535 + b"\\n"
        for _ in range(int(argument)): os.write(1, block)
        print("the very last")
    if what == "say": print(argument)
    if what == "psutil":
        import psutil
        return float(psutil.Process().pid == os.getpid() and psutil.Process().memory_info().rss > 2**20)
    return 1.0
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FunctionScorer:
    (tmp_path / "wild_scorer.py").write_text(SCORER)
    monkeypatch.syspath_prepend(tmp_path)
    return FunctionScorer("wild_scorer:score")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("trimtab"), "propagate", True)
    caplog.set_level(logging.INFO, "trimtab")
    return caplog


def verdict(verifier: Verifier, response: str, within: float = 60.0) -> Verdict:
    verifier.submit(0, Prompt(row=0, text="", answer="", source="", data={}), response)
    until = time.monotonic() + within
    while time.monotonic() < until:
        for _, found in verifier.poll(0.1):
            return found
    raise AssertionError(f"no verdict on {response}")


def holding(tmp_path: Path) -> int:
    """The reading end of a pipe that ends with the last process that the scorer has left."""
    os.mkfifo(tmp_path / "held")
    return os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)


@pytest.mark.parametrize("killed", [False, True])
def test_a_daemon_of_a_reward_ends_with_its_process(spec: FunctionScorer, tmp_path: Path, killed: bool) -> None:
    """Also without namespaces: the cage is where orphans come to."""
    held = holding(tmp_path)
    with Verifier(VerifierOptions(), spec) as verifier:
        assert verdict(verifier, f"daemon:{tmp_path / 'held'}").outcome is Outcome.CORRECT
        with pytest.raises(BlockingIOError):
            os.read(held, 1)  # it lives
        if killed:
            assert verdict(verifier, f"signal:{int(signal.SIGTERM)},0").outcome is Outcome.ERROR
    assert os.read(held, 1) == b""
    os.close(held)


ORPHANS = """
import os, sys, time
from trimtab.tasks import isolation
isolation._works = lambda: False  # a machine without namespaces
from trimtab.tasks import cage
cage.main()
"""


def test_where_there_are_no_namespaces_orphans_are_ended_one_by_one(
    spec: FunctionScorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "poor_cage.py").write_text(ORPHANS)
    monkeypatch.setattr("trimtab.tasks.verifier.CAGE", "poor_cage")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    held = holding(tmp_path)
    with Verifier(VerifierOptions(), spec) as verifier:
        verifier.ready()
        assert verifier.isolation is Isolation.ORPHANS
        assert verdict(verifier, f"daemon:{tmp_path / 'held'}").outcome is Outcome.CORRECT
    assert os.read(held, 1) == b""
    os.close(held)
    assert any("no process namespace can be had here" in m for m in said.messages)


@pytest.mark.skipif(not namespaces(), reason="no process namespaces here")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGINT])
@pytest.mark.parametrize("target", ["us", "our group", "its parent", "all", "its group"])
def test_a_reward_can_neither_stop_nor_kill_the_run(spec: FunctionScorer, number: signal.Signals, target: str) -> None:
    """``us`` would not be here to tell; so would the runner of the tests, where it shares our group."""
    pid = {"us": os.getpid(), "our group": -os.getpgrp(), "all": -1, "its group": 0}
    with Verifier(VerifierOptions(deadline_s=1.0, first_deadline_s=5.0), spec) as verifier:
        verifier.ready()
        assert verifier.isolation is Isolation.NAMESPACE  # or this test would be the victim
        found = verdict(verifier, f"parent:{int(number)}" if target == "its parent" else f"signal:{int(number)},{pid[target]}")
        if target in ("us", "our group"):
            assert found.score == 0.25, "there is no such process in its world"
        assert verdict(verifier, "fine").outcome is Outcome.CORRECT


@pytest.mark.skipif(not namespaces(), reason="no process namespaces here")
def test_a_process_in_a_namespace_finds_itself_in_proc(spec: FunctionScorer) -> None:
    with Verifier(VerifierOptions(), spec) as verifier:
        assert verdict(verifier, "psutil").score == 1.0


def test_gigabytes_of_print_reach_neither_the_terminal_nor_the_disk(tmp_path: Path) -> None:
    """256 MiB, at a moment's notice: a few thousand characters of it are in the log, the last ones."""
    (tmp_path / "wild_scorer.py").write_text(SCORER)
    code = (
        "import sys, pathlib\n"
        "from trimtab.telemetry.logging import configure\n"
        "from trimtab.tasks.options import VerifierOptions\n"
        "from trimtab.tasks.protocol import Prompt\n"
        "from trimtab.tasks.reward import FunctionScorer\n"
        "from trimtab.tasks.verifier import Verifier\n"
        "configure('INFO', pathlib.Path('run.log'), 'learner')\n"
        "with Verifier(VerifierOptions(deadline_s=60), FunctionScorer('wild_scorer:score')) as verifier:\n"
        "    verifier.submit(0, Prompt(row=0, text='', answer='', source='', data={}), 'print:4096')\n"
        "    [(_, found)] = verifier.poll(60.0)\n"
        "    print(found.outcome)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "correct\n"
    assert len(done.stderr) < 2000
    assert "(the end of it is in run.log)" in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run.log").read_text().splitlines()]
    assert (tmp_path / "run.log").stat().st_size < 20_000
    assert "".join(row.get("printed", "") for row in rows).replace("\n", "").endswith("xthe very last"), "wherever a look at it has cut it"
    assert sum(int(row["message"].split()[3].replace(",", "")) for row in rows if "printed" in row) == 4096 * 65536 + 14


def test_what_a_process_printed_before_it_failed_to_load_is_in_the_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lost.py").write_text("import os\nprint('one')\nprint('no such device: \\x1b[31mred')\nos._exit(9)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with Verifier(VerifierOptions(), FunctionScorer("lost:score")) as verifier, pytest.raises(TrimtabError) as error:
        verifier.ready()
    assert str(error.value) == (
        "the process of scorer lost:score ended with code 9 before it was ready, and the last it printed is: no such device: \\x1b[31mred"
    )


@pytest.mark.parametrize("sizes", [[10], [SIZE], [SIZE + 1], [3, SIZE - 1, 7], [5 * SIZE + 3], [1000] * 200])
def test_the_ring_keeps_the_end(sizes: list[int]) -> None:
    fd = Ring.create()
    writer, reader = Ring(fd), Ring(fd)
    os.close(fd)
    writer.begin(Isolation.ORPHANS)
    whole = b""
    for n, size in enumerate(sizes):
        part = bytes((n + i) % 251 for i in range(size))
        writer.write(part)
        whole += part
    assert (reader.total, reader.isolation) == (len(whole), Isolation.ORPHANS)
    assert reader.since(0) == whole[-SIZE:]
    assert reader.since(len(whole) - 5) == whole[-5:]
    assert reader.since(len(whole)) == b""


def test_what_is_printed_all_the_time_is_logged_seldom(monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture) -> None:
    """An hour of a line a second: at 1, 3, 7, 15 ... seconds, then every ten minutes."""
    now = 1000.0
    monkeypatch.setattr("trimtab.tasks.printed.time.monotonic", lambda: now)
    fd = Ring.create()
    ring, log = Ring(fd), PrintedLog("f:g")
    os.close(fd)
    ring.begin(Isolation.NONE)
    for second in range(3600):
        now = 1000.0 + second
        ring.write(b"line %d\n" % second)
        log.look(ring)
    assert 10 <= len(said.records) <= 20
    assert said.records[1].printed == "line 2\nline 3", "what is new"
    log.look(ring, last=True)
    log.look(ring, last=True)


def test_foreign_text_is_shown_not_obeyed() -> None:
    assert readable(b"a\x1b[2Jb\r\nc\td\xff\x07") == "a\\x1b[2Jb\nc\td\N{REPLACEMENT CHARACTER}\\x07"
