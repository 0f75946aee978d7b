"""An experiment from file to verdict: plan the runs, run what is missing, measure, judge, write the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from trimtab.lab import keys, schedule
from trimtab.lab.checks import CheckResult, Verdict, verdict
from trimtab.lab.load import SMOKE, Loaded
from trimtab.lab.measures import CellRun, compare, measure
from trimtab.lab.results import Results
from trimtab.lab.runners import refuse
from trimtab.lab.schedule import Display, Job, State
from trimtab.lab.store import Meta, Store
from trimtab.records import TrimtabError

ROOT = Path("runs/lab")
BUDGET_MINUTES = 90.0
SECONDS = 5.5e-4  # a unit of a job's weight on an idle core, for forecasts


@dataclass(frozen=True)
class Found:
    """An experiment's runs so far, its numbers, and what they say."""

    loaded: Loaded
    smoke: bool
    jobs: Sequence[Job]  # all that were asked for
    results: Results
    runs: Mapping[str, Sequence[CellRun]]  # cell -> its seeds
    metas: Mapping[tuple[str, int], Meta]  # (cell, seed)
    missing: Sequence[Job]  # of those
    findings: Sequence[CheckResult]
    verdict: Verdict
    broken: Mapping[str, str] = field(default_factory=dict)
    stopped: str = ""
    root: Path = ROOT

    @property
    def wall_s(self) -> float:
        """What its runs have taken, each once."""
        return sum({m.key: m.wall_s for m in self.metas.values()}.values())

    @property
    def cpu_s(self) -> float:
        return sum({m.key: m.cpu_s for m in self.metas.values()}.values())

    @property
    def commits(self) -> list[str]:
        return sorted({m.commit for m in self.metas.values()})


def plan(loaded: Loaded, seeds: int | None = None, *, smoke: bool = False) -> list[Job]:
    """All runs, seed by seed: whatever stops the experiment, every cell has had its turn."""
    e = loaded.experiment
    options = {arm: e.runner_options(arm, smoke=smoke) for arm in e.arms}
    for own in options.values():
        refuse(e.runner, own)  # here rather than in a worker, once a cell
    cells = [(cell, 1 if smoke else e.seeds_of(cell, seeds)) for cell in e.cells(smoke=smoke)]
    jobs = []
    for seed in range(max(n for _, n in cells)):
        for cell, n in cells:
            if seed < n:
                config = loaded.config(cell, seed, smoke=smoke)
                own = options[cell.arm]
                jobs.append(Job(cell, seed, keys.key(config, e.runner, own), config, own))
    return jobs


def forecast_minutes(loaded: Loaded) -> float:
    """On one idle core: what the file says, or a guess from samples, for the quickstart's model size."""
    if loaded.experiment.minutes is not None:
        return loaded.experiment.minutes
    jobs = plan(loaded)
    return sum({job.key: job.weight for job in jobs}.values()) * SECONDS / 60


def run(
    loaded: Loaded,
    root: Path,
    display: Display,
    *,
    seeds: int | None = None,
    at_once: int = 1,
    budget_s: float = BUDGET_MINUTES * 60,
    smoke: bool = False,
    only: str = "*",
    again: bool = False,
) -> Found:
    """Run what has no result yet and collect everything.

    ``only``: a pattern of cell names; the others are not run, but what they have is collected.
    ``again``: run also what has a result, which stays until it is replaced.
    """
    jobs = plan(loaded, seeds, smoke=smoke)
    wanted = [job for job in jobs if fnmatchcase(job.cell.name, only)]
    if not wanted:
        names = ", ".join(dict.fromkeys(job.cell.name for job in jobs))
        raise TrimtabError.field("cells", only, f"no cell is called so; there are {names}")
    store = Store(root)
    e = loaded.experiment
    state = schedule.run(wanted, store, e.runner, 1 if e.alone else at_once, budget_s, display, again=again)
    return collect(loaded, jobs, store, smoke=smoke, state=state)


def collect(loaded: Loaded, jobs: Sequence[Job], store: Store, *, smoke: bool = False, state: State | None = None) -> Found:
    """Measure what the store has of the jobs and of all that the file asks for, so that fewer seeds now do not hide those of before."""
    e = loaded.experiment
    runs: dict[str, list[CellRun]] = {}
    values: dict[tuple[str, int], dict[str, float]] = {}
    metas: dict[tuple[str, int], Meta] = {}
    asked = {(job.cell.name, job.seed): job for job in [*plan(loaded, smoke=smoke), *jobs]}
    for job in asked.values():
        if store.has(job.key):
            run, metas[job.cell.name, job.seed] = store.load(job.key, job.cell.label)
            runs.setdefault(job.cell.name, []).append(run)
            values[job.cell.name, job.seed] = measure(e.measures, run)
    compare(e.measures, e.cells(smoke=smoke), values)
    results = Results(e.cells(smoke=smoke), list(e.measures), values)
    findings = [check.of(results) for check in e.checks]
    missing = [job for job in jobs if (job.cell.name, job.seed) not in metas]
    judged: Verdict = "not judged" if smoke else verdict(findings)
    broken, stopped = (state.broken, state.stopped) if state else ({}, "")
    return Found(loaded, smoke, jobs, results, runs, metas, missing, findings, judged, broken, stopped, store.root.parent)


def folder(root: Path, name: str, *, smoke: bool = False) -> Path:
    """Where an experiment's results go."""
    return root / SMOKE / name if smoke else root / name
