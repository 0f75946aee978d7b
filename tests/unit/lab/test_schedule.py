"""Who runs what: results that stand, other commands on the same folder, a budget. Workers are in this process; store and locks are real."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.laboratory import Watching
from trimtab.config.load import load
from trimtab.lab import schedule
from trimtab.lab.results import CellName
from trimtab.lab.schedule import CellTask, Ended, Job, State
from trimtab.lab.store import Store

CONFIG = load("quickstart", ["runtime.kind=lockstep"])


class Worker:
    """Leaves a run folder as soon as it is asked for one, and says so."""

    meanwhile: Callable[[str], None] = staticmethod(lambda key: None)  # what happens while a key is run

    def __init__(self, *_: object, **__: object) -> None:
        self.connection = self
        self._said: list[int | Ended] = []

    def send(self, task: CellTask) -> None:
        folder = Path(task.folder)
        (folder / "metrics.jsonl").write_text('{"batch": 0, "time": 1.0, "metrics": {}}\n')
        type(self).meanwhile(folder.name.partition(".")[0])
        self._said += [1, Ended("", 1.0, 1.0)]

    def recv(self) -> int | Ended:
        return self._said.pop(0)

    def has_message(self, seconds: float = 0.0) -> bool:
        return bool(self._said)

    def kill(self) -> int:
        return 0


@pytest.fixture(autouse=True)
def _workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(schedule, "Child", Worker)
    monkeypatch.setattr(schedule, "POLL_S", 0.01)
    yield
    Worker.meanwhile = staticmethod(lambda key: None)


class Seeing(Watching):
    """Does something when it is shown a state."""

    def __init__(self, then: Callable[[State], None] = lambda state: None) -> None:
        super().__init__()
        self._then = then

    def update(self, state: State) -> None:
        self._then(state)


def run(root: Path, display: Watching, keys: str, *, at_once: int = 1, budget_s: float = 60.0, again: bool = False) -> State:
    jobs = [Job(CellName(key, {}, key), 0, key, CONFIG, {}) for key in keys]
    return schedule.run(jobs, Store(root), "train", at_once, budget_s, display, again=again)


def ran(root: Path, keys: str, **options: object) -> list[str]:
    display = Watching()
    run(root, display, keys, **options)  # type: ignore[arg-type]
    return [name.partition(" ")[0] for name in display.ran]


def finish(root: Path, key: str) -> None:
    """As another command does."""
    store = Store(root)
    part = store.root / f"{key}.part-1"
    part.mkdir()
    store.finish(part, "train", 5.0, 5.0)


def test_what_is_there_is_not_run(tmp_path: Path) -> None:
    assert ran(tmp_path, "ab") == ["a", "b"]
    assert ran(tmp_path, "abac") == ["c"]
    assert sorted(p.name for p in (tmp_path / "cells").iterdir()) == ["a", "b", "c"]


def test_again_loses_nothing_before_it_has_something_new(tmp_path: Path) -> None:
    ran(tmp_path, "ab")
    store = Store(tmp_path)
    before = {key: store.stamp(key) for key in "ab"}
    state = run(tmp_path, Watching(), "ab", budget_s=0.0, again=True)
    assert state.stopped == "the budget is spent, 2 runs were not repeated"
    assert {key: store.stamp(key) for key in "ab"} == before

    def interrupt(key: str) -> None:
        raise KeyboardInterrupt

    Worker.meanwhile = staticmethod(interrupt)
    with pytest.raises(KeyboardInterrupt):
        ran(tmp_path, "ab", again=True)
    assert {key: store.stamp(key) for key in "ab"} == before
    assert sorted(p.name for p in store.root.iterdir()) == ["a", "b"]
    Worker.meanwhile = staticmethod(lambda key: None)
    assert ran(tmp_path, "ab", again=True) == ["a", "b"]
    assert all(store.stamp(key) not in (None, before[key]) for key in "ab")


@pytest.mark.parametrize("again", [False, True])
def test_what_another_command_finishes_meanwhile_is_not_run_again(tmp_path: Path, again: bool) -> None:
    Worker.meanwhile = staticmethod(lambda key: finish(tmp_path, "b") if key == "a" else None)
    display = Watching()
    state = run(tmp_path, display, "abc", again=again)
    assert display.ran == ["a seed 0", "c seed 0"]
    assert (state.done, state.total, state.waiting) == (3, 3, [])


def test_what_another_command_is_running_is_waited_for(tmp_path: Path) -> None:
    lock = Store(tmp_path).lock("a")
    assert lock is not None
    waits = 0

    def then(state: State) -> None:
        nonlocal waits
        if state.elsewhere and not state.running and (waits := waits + 1) == 3:
            finish(tmp_path, "a")
            lock.release()

    display = Seeing(then)
    state = run(tmp_path, display, "ab", at_once=2)
    assert display.ran == ["b seed 0"]
    assert (state.done, state.elsewhere, waits) == (2, 0, 3)
    assert sorted(p.name for p in (tmp_path / "cells").iterdir()) == ["a", "b"]


def test_what_a_command_was_running_that_died_is_run(tmp_path: Path) -> None:
    cells = Store(tmp_path).root
    hold = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", hold, str(cells / "a.lock")], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        display = Seeing(lambda state: holder.kill() if state.elsewhere and not state.running else None)
        run(tmp_path, display, "ab")
    assert display.ran == ["b seed 0", "a seed 0"]


def test_a_budget_does_not_wait_for_others(tmp_path: Path) -> None:
    lock = Store(tmp_path).lock("a")
    state = run(tmp_path, Watching(), "a", budget_s=0.05)
    assert (state.stopped, state.done) == ("the budget is spent", 0)
    assert lock is not None
    lock.release()
