"""kill -9 of the process that owns a verifier leaves no scorer behind, whatever the scorer is doing."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from support.caged import namespaces

OWNER = """
import sys
from trimtab.tasks.options import VerifierOptions
from trimtab.tasks.protocol import Prompt
from trimtab.tasks.reward import FunctionScorer
from trimtab.tasks.verifier import Verifier
verifier = Verifier(VerifierOptions(workers=2, deadline_s=600, isolate=sys.argv[2] == "1"), FunctionScorer("busy_scorer:score"))
verifier.ready()
for key in range(2):
    verifier.submit(key, Prompt(row=0, text="", answer="", source="", data={}), sys.argv[1])
while True:
    verifier.poll(1.0)
"""

SCORER = """
import os, re, sys, time
def score(prompt, response, answer, data):
    open(f"{os.path.dirname(__file__)}/running-{time.time_ns()}", "w").close()
    if response == "daemon" and os.fork() == 0:  # a session of its own, and nobody's child
        os.setsid()
        if os.fork() == 0: time.sleep(3600)
        os._exit(0)
    if response == "daemon": os.wait()
    if response == "regex": re.match(r"(a+)+$", "a" * 60 + "b")  # holds the interpreter lock: no thread of ours can run
    if response == "fork" and os.fork() == 0: time.sleep(3600)
    if response == "idle": return 1.0
    time.sleep(3600)
"""


@pytest.mark.chaos
@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize("doing", ["regex", "fork", "daemon", "sleep", "idle"])
def test_no_orphan_when_the_owner_is_killed(doing: str, isolate: bool, tmp_path: Path) -> None:
    (tmp_path / "busy_scorer.py").write_text(SCORER)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    owner = psutil.Popen([sys.executable, "-c", OWNER, doing, str(int(isolate))], env=env)
    family: set[psutil.Process] = set()
    isolated = isolate and namespaces()
    try:
        _wait(lambda: len(list(tmp_path.glob("running-*"))) == 2)
        wanted = 2 * (2 + (isolated and 1) + (doing in ("fork", "daemon")))  # cage, scorer, first of the namespace, its child
        _wait(lambda: len(owner.children(recursive=True)) == wanted)
        family = set(owner.children(recursive=True))
        owner.kill()
        owner.wait()
        _wait(lambda: not _alive(family))
    finally:
        with suppress(psutil.NoSuchProcess):
            owner.kill()
        for process in _alive(family):
            process.kill()


def _alive(processes: set[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _wait(condition: Callable[[], bool], within: float = 30.0) -> None:
    until = time.monotonic() + within
    while not condition():
        assert time.monotonic() < until, "not in time"
        time.sleep(0.02)
