"""kill -9 of the process that owns a verifier leaves no scorer behind, whatever the scorer is doing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

OWNER = """
import sys
from trimtab.tasks.options import VerifierOptions
from trimtab.tasks.protocol import Prompt
from trimtab.tasks.reward import FunctionScorer
from trimtab.tasks.verifier import Verifier
verifier = Verifier(VerifierOptions(workers=2, deadline_s=600), FunctionScorer("busy_scorer:score"))
verifier.ready()
for key in range(2):
    verifier.submit(key, Prompt(row=0, text="", answer="", source="", data={}), sys.argv[1])
while True:
    verifier.poll(1.0)
"""

SCORER = """
import os, re, sys, time
def score(prompt, response, answer, data):
    open(f"{os.path.dirname(__file__)}/running-{os.getpid()}", "w").close()
    if response == "regex": re.match(r"(a+)+$", "a" * 60 + "b")  # holds the interpreter lock: no thread of ours can run
    if response == "fork" and os.fork() == 0: time.sleep(3600)
    if response == "idle": return 1.0
    time.sleep(3600)
"""


@pytest.mark.chaos
@pytest.mark.parametrize("doing", ["regex", "fork", "sleep", "idle"])
def test_no_orphan_when_the_owner_is_killed(doing: str, tmp_path: Path) -> None:
    (tmp_path / "busy_scorer.py").write_text(SCORER)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    owner = subprocess.Popen([sys.executable, "-c", OWNER, doing], env=env)
    groups: set[int] = set()
    try:
        _wait(lambda: len(list(tmp_path.glob("running-*"))) == 2)
        groups = {int(p.name.removeprefix("running-")) for p in tmp_path.glob("running-*")}
        wanted = 4 if doing == "fork" else 2
        _wait(lambda: len(_alive(groups)) == wanted)
        owner.kill()
        owner.wait()
        _wait(lambda: not _alive(groups))
    finally:
        owner.kill()
        for process in _alive(groups):
            os.kill(process, signal.SIGKILL)


def _alive(groups: set[int]) -> list[int]:
    """Processes of these groups that are not zombies."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) in groups and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def _wait(condition: Callable[[], bool], within: float = 30.0) -> None:
    until = time.monotonic() + within
    while not condition():
        assert time.monotonic() < until, "not in time"
        time.sleep(0.02)
