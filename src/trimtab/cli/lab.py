"""``lab``: experiments listed, run, shown and copied."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from trimtab.extras import require
from trimtab.lab import output
from trimtab.lab.laboratory import folder, forecast_minutes, run
from trimtab.lab.load import load, shipped, taken
from trimtab.lab.measures import absent
from trimtab.lab.schedule import Job, State
from trimtab.lab.store import Meta
from trimtab.records import TrimtabError

EXIT_DONE, EXIT_BROKEN, EXIT_INTERRUPTED = 0, 1, 130


def list_experiments(root: Path, markdown: bool) -> None:
    """Name, verdict and minutes of each, then its claim."""
    rows = [_listed(name, root) for name in shipped()]
    titles = ("name", "verdict", "minutes", "claim")
    if markdown:
        for cells in (titles, ["---"] * len(titles), *rows):
            print(f"| {' | '.join(cells)} |")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in titles:
        table.add_column(title, justify="right" if title == "minutes" else "left", overflow="fold")
    for cells in rows:
        table.add_row(*cells)
    Console().print(table)


def _listed(name: str, root: Path) -> tuple[str, str, str, str]:
    loaded = load(name)
    claim = loaded.experiment.claim
    shown = output.ShownResults.read(folder(root, name))
    if shown is None:
        return name, "", f"~{forecast_minutes(loaded):.0f}", claim
    verdict = f"{shown.table['verdict']}{' (provisional)' if shown.table['provisional'] else ''}"
    return name, verdict, f"{float(str(shown.table['wall_s'])) / 60:.0f}", claim


def run_experiment(
    source: str, root: Path, *, seeds: int | None, jobs: int, budget_minutes: float, smoke: bool, cells: str, again: bool
) -> int:
    """Run what is missing, write the page, say the verdict; the exit code."""
    require("lab", "trimtab lab run")
    loaded = load(source)
    try:
        with _importable(loaded.path.parent), Watch(source, jobs) as watch:
            found = run(loaded, root, watch, seeds=seeds, at_once=jobs, budget_s=budget_minutes * 60, smoke=smoke, only=cells, again=again)
    except KeyboardInterrupt:
        print(f"interrupted: runs that ended are kept{'' if again else ', the same command goes on'}")
        return EXIT_INTERRUPTED
    page = output.write(found, folder(root, loaded.name, smoke=smoke), seeds)
    for f in () if smoke else found.findings:
        print(f"{output.mark(f):<4} {f.says}")
    print(f"{loaded.name}: {output.judged(found)}")
    name, title = next(iter(loaded.experiment.measures)), output.headings(found)[0][0]
    print(f"{title}: {', '.join(f'{r.cell} {r.mean:.3f}' for r in found.results.rows() if r.metric == name and r.seeds)}")
    for job, reason in found.broken.items():
        print(f"broken  {job}: {reason}")
    if found.stopped:
        go_on = output.command(found, seeds, None if cells == "*" else cells, jobs)
        missing = f": {len(found.missing)} of {len(found.jobs)} runs are missing; go on with: {go_on}"
        print(f"{found.stopped}{missing if found.missing else ''}")
    for what in absent(loaded.experiment.measures, (r for of_cell in found.runs.values() for r in of_cell)):
        print(f"warning {what}")
    print(f"page    {page}")
    return EXIT_BROKEN if found.broken else EXIT_DONE


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Code in the working folder, then in ``folder``, is found: also by workers, which get our path, behind the working folder."""
    before = list(sys.path)
    sys.path[:0] = [str(Path.cwd()), str(folder.resolve())]
    try:
        yield
    finally:
        sys.path[:] = before


def show(source: str, root: Path, as_json: bool) -> None:
    """Claim, verdict and numbers of an experiment that has been run."""
    loaded = load(source)
    place = folder(root, loaded.name)
    shown = output.ShownResults.read(place)
    if shown is None:
        raise TrimtabError(f"{loaded.name} has no results in {root}: make them with `{output.lab_run(source, root)}`")
    print(
        json.dumps(shown.brief(), indent=1) if as_json else (place / output.TABLE).read_text(encoding="utf-8"), end="\n" if as_json else ""
    )


def copy(source: str, target: Path) -> None:
    """Write an experiment's file where it can be changed."""
    if target.suffix != ".toml":
        raise TrimtabError.field("file", str(target), "an experiment is a .toml file, and its name is the experiment's")
    if target.exists():
        raise TrimtabError.field("file", str(target), "it exists already; choose another name")
    if why := taken(target.stem):
        raise TrimtabError.field("file", str(target), f"{why}; choose another")
    text = load(source).path.read_text(encoding="utf-8")
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TrimtabError.field("file", str(target), f"it cannot be written ({error.strerror}); choose another place") from None
    print(f"{target}: change it, then `trimtab lab run {target}`")


class Watch:
    """Live progress of an experiment: a display that redraws on a terminal, a line a run elsewhere."""

    def __init__(self, source: str, jobs: int) -> None:
        self._source, self._jobs = source, jobs
        self._console = Console(stderr=True)
        self._bar = Progress(TextColumn(source), MofNCompleteColumn(), BarColumn(bar_width=40))
        self._task = self._bar.add_task("", total=1)
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None
        self._begun = time.perf_counter()

    def __enter__(self) -> Watch:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, state: State) -> None:
        self._bar.update(self._task, total=state.total, completed=state.done)
        if self._live is None:
            return
        table = Table.grid(padding=(0, 2))
        for busy in state.running.values():
            done = f"batch {busy.batch}/{busy.job.config.learner.batches}" if busy.batch else "starting"
            table.add_row(busy.job.name, Text(done, style="dim"), Text(_time(time.perf_counter() - busy.since), style="dim"))
        elsewhere = f", {state.elsewhere} under way elsewhere" if state.elsewhere else ""
        self._live.update(Group(self._bar.get_renderable(), table, Text(f"left {self._left(state)}{elsewhere}", style="dim")))

    def ended(self, job: Job, meta: Meta, state: State) -> None:
        self._say(f"{job.name}: {meta.wall_s:.0f} s, {meta.cpu_s:.0f} CPU-s; {state.done} of {state.total}, left {self._left(state)}")

    def broke(self, job: Job, why: str) -> None:
        self._say(f"{job.name} is broken: {why}")

    def _left(self, state: State) -> str:
        seconds = state.left_s(self._jobs)
        return "?" if seconds is None else _time(seconds)

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)


def _time(seconds: float) -> str:
    s = int(seconds)
    return f"{s // 3600}:{s // 60 % 60:02d}:{s % 60:02d}" if s >= 3600 else f"{s // 60}:{s % 60:02d}"
