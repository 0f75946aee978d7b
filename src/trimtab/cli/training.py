"""``train`` and ``resume``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trimtab.config.load import load, override, read_resolved, read_table, validate
from trimtab.config.run import RunConfig
from trimtab.extras import missing
from trimtab.records import StoppedByRule
from trimtab.report.summary import Summary
from trimtab.store.run_folder import RunFolder
from trimtab.telemetry.held_out import moved

EXIT_DONE, EXIT_STOPPED, EXIT_INTERRUPTED = 0, 3, 130


def _config(source: str, overrides: Sequence[str], sync: bool) -> RunConfig:
    config = _synchronous(source, overrides) if sync else load(source, overrides)
    config.require_extras()
    return config


def _synchronous(source: str, overrides: Sequence[str]) -> RunConfig:
    table = read_table(source)
    table["runtime"] = {"kind": "lockstep", "lag": 0}
    return validate(override(table, overrides))


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _folder(runs: Path, config: RunConfig, named: bool) -> Path:
    """runs/NAME; where the name was not given on the command line and is taken, the next free NAME-2, NAME-3, ..."""
    path, n = runs / config.name, 1
    while not named and RunFolder.taken(path):
        n += 1
        path = runs / f"{config.name}-{n}"
    return path


def train(source: str, overrides: Sequence[str], sync: bool, runs: Path, quiet: bool = False) -> int:
    """Run it; the exit code."""
    from trimtab.cli.progress import Progress

    config = _config(source, overrides, sync)
    path = _folder(runs, config, any(o.partition("=")[0].strip() == "name" for o in overrides))
    _one_thread()
    from trimtab.runtime.run import start

    with _pointing_at(path), Progress(config, path, quiet) as progress:
        summary = start(config, path, progress)
    return _end(path, summary)


def resume(path: Path, overrides: Sequence[str], quiet: bool = False, accept_changed_data: bool = False) -> int:
    """Go on; the exit code."""
    from trimtab.cli.progress import Progress

    table = read_resolved(RunFolder.open(path).config_json)
    _one_thread()
    from trimtab.runtime.run import changed
    from trimtab.runtime.run import resume as go_on

    config = changed(table, overrides)
    with _pointing_at(path), Progress(config, path, quiet) as progress:
        summary = go_on(path, overrides, progress, accept_changed_data=accept_changed_data)
    return _end(path, summary)


@contextmanager
def _pointing_at(path: Path) -> Iterator[None]:
    """A run that a rule has stopped has a report all the same, and goes on once the cause is mended."""
    try:
        yield
    except StoppedByRule:
        print(f"stopped and checkpointed; go on with: trimtab resume {path}")
        print(f"report  {_page(path)}")
        raise


def _page(path: Path) -> str:
    """Where the report is, or why there is none and how to have it."""
    package = missing("report")
    if package is None:
        return str(path / "report.html")
    return f'not made, it needs the package {package}: pip install "trimtab[report]", then trimtab report {path}'


def _end(path: Path, s: Summary) -> int:
    if s.status == "done":
        print(_held_out(s))
        print(f"{s.batches} batches ({s.applied} applied, {s.skipped} skipped), {s.wall_s:.0f} s")
        print(f"age of trained tokens: mean {s.mean_age:.2f}, max {s.max_age} versions")
        print(f"{s.spanning_rollouts} rollouts span two or more versions")
        print(f"model   {path / 'model'}")
        _print_best(path, s)
        print(f"report  {_page(path)}")
        return EXIT_DONE
    _print_best(path, s)
    print(f"interrupted after {s.batches} batches and checkpointed; go on with: trimtab resume {path}")
    return EXIT_INTERRUPTED


def _print_best(path: Path, s: Summary) -> None:
    if (best := s.evaluation("best")) is not None and s.best is not None:
        print(f"best    {path / 'best'}: {best.main[0]} {best.main[1].text()} after {s.best['batch']} batches")


def _held_out(s: Summary) -> str:
    """What the run did to the held-out number, and whether that is more than noise."""
    before, after = s.evaluation("before"), s.evaluation("after")
    if before is None or after is None:
        return f"held-out {after.text() if after is not None else 'accuracy: not evaluated'}"
    name, now = after.main
    was = before.score if name == "score" else before.accuracy
    noise = moved(before, after)[0] == "noise" and was.mean != now.mean
    on = f", a change within the noise of {after.asks()}" if noise else f" on {after.asks()}"
    line = "; ".join([f"held-out {name} {was.mean:.3f} -> {now.text()} (95 %){on}", *after.notes()])
    doubts = [when for when, found in (("first", before), ("last", after)) if found.doubtful]
    return line + (f"; the {' and the '.join(doubts)} evaluation is not to be believed: too many failed" if doubts else "")


def dry_run(source: str, overrides: Sequence[str], sync: bool) -> None:
    """Plan, memory and predicted ceiling; nothing is written."""
    config = _config(source, overrides, sync)
    _one_thread()
    from trimtab.runtime.forecast import forecast

    for line in forecast(config):
        print(line)
