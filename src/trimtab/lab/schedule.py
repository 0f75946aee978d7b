"""Runs what has no result yet: several processes of one thread each, finished runs untouched, a budget of time.

What another command runs in the same folder meanwhile is waited for, not run twice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trimtab.config.run import RunConfig
from trimtab.lab.results import CellName
from trimtab.lab.store import Lock, Meta, Store
from trimtab.records import Json
from trimtab.tasks.child import Child

OUTPUT = "output.txt"  # what a run wrote on stderr, kept where it failed
POLL_S = 0.2
PATIENCE_S = 24 * 3600  # a worker waits for its next cell while another finishes


@dataclass(frozen=True, slots=True)
class Job:
    """One run that an experiment needs."""

    cell: CellName
    seed: int
    key: str
    config: RunConfig
    options: Mapping[str, Json]  # of the runner

    @property
    def name(self) -> str:
        return f"{self.cell.name} seed {self.seed}"

    @property
    def weight(self) -> float:
        """What it costs, roughly, in units of its own."""
        r, o = self.config.rollout, self.config.learner
        return o.batches * r.prompts_per_batch * r.group_size * (1.0 + 0.7 * o.epochs)


@dataclass(frozen=True, slots=True)
class CellTask:
    """A job, as a worker gets it."""

    folder: str
    runner: str
    options: Mapping[str, Json]
    config: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker's answer: what broke it ("" where nothing did), seconds of wall and CPU time."""

    error: str
    wall_s: float
    cpu_s: float


@dataclass(slots=True)
class Busy:
    """A job under way."""

    job: Job
    since: float
    folder: Path
    lock: Lock
    batch: int = 0


@dataclass(slots=True)
class State:
    """What a display shows."""

    total: int  # jobs, those of earlier runs included
    done: int
    waiting: list[Job]
    running: dict[int, Busy] = field(default_factory=dict)  # by place
    broken: dict[str, str] = field(default_factory=dict)  # job -> why
    elsewhere: int = 0  # of those that wait: how many another process runs now
    stopped: str = ""  # why no more are started
    spent: list[tuple[float, float]] = field(default_factory=list)  # weight and seconds of the jobs that ended here

    def left_s(self, jobs: int) -> float | None:
        """Seconds until all are done, from what the jobs so far have cost; None before the first has got anywhere."""
        now = time.perf_counter()
        under_way = [(b, b.job.weight * b.batch / b.job.config.learner.batches) for b in self.running.values()]
        weight = sum(w for w, _ in self.spent) + sum(w for _, w in under_way)
        seconds = sum(s for _, s in self.spent) + sum(now - b.since for b, _ in under_way)
        if not weight:
            return None
        todo = sum(job.weight for job in self.waiting) + sum(b.job.weight - w for b, w in under_way)
        return seconds / weight * todo / max(1, min(jobs, len(self.waiting) + len(self.running)))


class Display(Protocol):
    """Who watches."""

    def update(self, state: State) -> None: ...
    def ended(self, job: Job, meta: Meta, state: State) -> None: ...
    def broke(self, job: Job, why: str) -> None: ...


def run(
    jobs: Sequence[Job],
    store: Store,
    runner: str,
    at_once: int,
    budget_s: float,
    display: Display,
    *,
    again: bool = False,
) -> State:
    """Run the jobs in their order, ``at_once`` at a time; start none once the budget is spent. Cells that share a key are one run.

    ``again``: run also what has a result; it stays until the new one takes its place.
    """
    store.sweep()
    unique = {job.key: job for job in reversed(jobs)}
    first = [job for job in jobs if unique[job.key] is job]
    places = _Places(store, runner, {job.key: store.stamp(job.key) for job in first} if again else {})
    waiting = [job for job in first if not places.done(job)]
    state = State(total=len(first), done=len(first) - len(waiting), waiting=waiting)
    until = time.perf_counter() + budget_s
    display.update(state)
    try:
        while state.waiting or state.running:
            places.hand_out(state, at_once, until)
            for place, busy in list(state.running.items()):
                places.listen(place, busy, state, display)
            display.update(state)
            if state.stopped and not state.running:
                break
            places.wait(state)
    finally:
        places.clear(state)
    return state


class _Places:
    """The processes, one a place, and what they are given. ``old``: stamps of runs that do not count."""

    def __init__(self, store: Store, runner: str, old: Mapping[str, tuple[int, int] | None]) -> None:
        self._store, self._runner, self._old = store, runner, old
        self._children: dict[int, Child] = {}

    def done(self, job: Job) -> bool:
        stamp = self._store.stamp(job.key)
        return stamp is not None and stamp != self._old.get(job.key)

    def hand_out(self, state: State, at_once: int, until: float) -> None:
        for place in range(at_once):
            if place in state.running or not state.waiting:
                continue
            if time.perf_counter() >= until:
                repeat = f", {len(state.waiting)} runs were not repeated" if self._old else ""
                state.stopped = f"the budget is spent{repeat}"
                return
            taken = self._next(state)
            if taken is None:
                return
            job, lock = taken
            if place not in self._children:
                self._children[place] = Child("trimtab.lab.worker", "", patience_s=PATIENCE_S, threads=1)
            busy = state.running[place] = Busy(job, time.perf_counter(), self._store.begin(job.key), lock)
            with suppress(OSError):  # it is dead, which listening finds
                task = CellTask(str(busy.folder), self._runner, job.options, job.config.model_dump(mode="json"))
                self._children[place].connection.send(task)

    def _next(self, state: State) -> tuple[Job, Lock] | None:
        """The first that nobody runs or has run; those that another process runs go to the end."""
        state.elsewhere = 0
        for _ in range(len(state.waiting)):
            job = state.waiting.pop(0)
            lock = None if self.done(job) else self._store.lock(job.key)
            if self.done(job):  # also where it was finished just before we got the lock
                state.done += 1
                if lock is not None:
                    lock.release()
            elif lock is not None:
                return job, lock
            else:
                state.waiting.append(job)
                state.elsewhere += 1
        return None

    def listen(self, place: int, busy: Busy, state: State, display: Display) -> None:
        """Take what a worker has said."""
        child = self._children[place]
        while child.has_message():
            try:
                said = child.connection.recv()
            except (EOFError, OSError):
                said = Ended(f"its process ended with exit code {self._children.pop(place).kill()}", 0.0, 0.0)
            if isinstance(said, int):
                busy.batch = said
                continue
            del state.running[place]
            if said.error:
                why = state.broken[busy.job.name] = f"{said.error} (see {self._store.failed(busy.folder)})"
                busy.lock.release()
                display.broke(busy.job, why)
            else:
                meta = self._store.finish(busy.folder, self._runner, said.wall_s, said.cpu_s)
                busy.lock.release()
                state.done += 1
                state.spent.append((busy.job.weight, time.perf_counter() - busy.since))
                display.ended(busy.job, meta, state)
            return

    def wait(self, state: State) -> None:
        """Until a worker says something, or for a moment."""
        if state.running:
            with suppress(KeyError):
                self._children[next(iter(state.running))].has_message(POLL_S)
        elif state.waiting and len(state.waiting) == state.elsewhere:
            time.sleep(POLL_S)

    def clear(self, state: State) -> None:
        for child in self._children.values():
            child.kill()
        for busy in state.running.values():
            self._store.abandon(busy.folder)
            busy.lock.release()
