"""``kill -9`` inside a save: the newest checkpoint always verifies, and it is the one being written or the one before."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from trimtab.store.checkpoint import load, load_latest, numbers, save
from trimtab.store.resume import prepare_resume
from trimtab.store.run_folder import RunFolder

pytestmark = pytest.mark.chaos

CALLS = ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir")


def state(n: int) -> dict[str, object]:
    return {"learner": {"w": np.full(20_000, n, np.float32), "moments": np.full(20_000, -n, np.float64)}, "pool": {"cursor": n}}


def assert_is(parts: object, n: int) -> None:
    assert parts["pool"] == {"cursor": n}
    assert (parts["learner"]["w"] == n).all()
    assert (parts["learner"]["moments"] == -n).all()


def die_at(call: int) -> None:
    """Make this process kill itself just before its ``call``-th system call that changes the disk (counted from 0)."""
    left = call

    def dying(real):
        def wrapped(*args, **kwargs):
            nonlocal left
            if real is real_open and not args[1] & os.O_CREAT:
                return real(*args, **kwargs)
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return real(*args, **kwargs)

        return wrapped

    real_open = os.open
    for name in CALLS:
        setattr(os, name, dying(getattr(os, name)))


@pytest.mark.parametrize("keep", [1, 2])
def test_killed_before_every_system_call_of_a_save(tmp_path: Path, keep: int) -> None:
    """Exhaustive: a third checkpoint that replaces the oldest kept one, killed before its call 0, 1, 2, ..."""
    seen: list[int] = []
    for call in range(200):
        folder = tmp_path / f"{call:03d}"
        for n in (1, 2):
            save(folder, n, state(n), keep=keep)
        child = os.fork()
        if child == 0:
            die_at(call)
            save(folder, 3, state(3), keep=keep)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        loaded = load_latest(folder)
        assert loaded.passed_over == {}, f"killed at call {call}"
        assert loaded.number in (2, 3)
        for n in numbers(folder):  # the older ones that are still there, too
            assert_is(load(folder, n), n)
        seen.append(loaded.number)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert status == 0, "the save never finished"
    assert numbers(folder) == [2, 3][-keep:]
    assert seen == sorted(seen)  # one moment decides: before it the old state, after it the new
    assert seen.count(2) > 10
    assert seen.count(3) > 3


LOOP = """
import sys
from pathlib import Path
import numpy as np
from trimtab.store.checkpoint import save
from trimtab.store.resume import prepare_resume
from trimtab.store.run_folder import RunFolder
with RunFolder.open(Path(sys.argv[1])) as folder:
    n = prepare_resume(folder).number
    print(n, flush=True)
    while True:
        n += 1
        save(folder.checkpoints, n, {"learner": {"w": np.full(20_000, n, np.float32), "moments": np.full(20_000, -n, np.float64)},
                                     "pool": {"cursor": n}}, keep=2)
        print(n, flush=True)
"""


def test_killed_at_random_and_resumed(tmp_path: Path) -> None:
    """A run that only saves, killed again and again; each start resumes from the last number announced, or one more."""
    rng = random.Random(0)
    folder = RunFolder.create(tmp_path / "run")
    with folder:
        folder.config_json.write_text("{}")
        save(folder.checkpoints, 0, state(0), keep=2)
    stood = inside = 0
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", LOOP, str(folder.path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(rng.randint(2, 7))]
        time.sleep(rng.uniform(0.0, 0.03))
        process.kill()
        lines += process.stdout.readlines()
        assert int(lines[0]) == stood
        announced = int(lines[-1])
        process.wait()
        process.stdout.close()
        inside += any(folder.checkpoints.glob(".tmp-*"))
        with RunFolder.open(folder.path) as again:
            assert list(again.checkpoints.glob(".tmp-*")) == []
            point = prepare_resume(again)
        assert point.passed_over == {}
        assert point.number in (announced, announced + 1)
        assert_is(point.parts, point.number)
        stood = point.number
    assert stood >= 6
    assert inside >= 3, "too few kills fell inside a save"
