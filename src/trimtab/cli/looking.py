"""``show``, ``report`` and ``replay``: a run looked at from its files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text

from trimtab.config.load import read_resolved, validate
from trimtab.config.models import model_folder
from trimtab.foreign import printable
from trimtab.records import Group, Outcome, Rollout, TrimtabError
from trimtab.store.run_folder import RunFolder

AGE_STYLES = ("", "green", "cyan", "blue", "magenta", "red")


def show(path: Path, batch: int | None, limit: int, outcome: str | None) -> None:
    """Rollouts of a batch: prompt and response colored by age, the age of each token in runs, score and outcome."""
    from trimtab.engines.checkpoint import load_tokenizer
    from trimtab.store.rollout_log import last_batch, read

    known = [o.value for o in Outcome if o is not Outcome.ERROR]  # an error leaves its group
    if outcome is not None and outcome not in known:
        raise TrimtabError.field("outcome", outcome, f"there are {', '.join(known)}")
    folder = RunFolder.open(path)
    config = validate(read_resolved(folder.config_json))
    tokenizer = load_tokenizer(model_folder(config.model))
    wanted = last_batch(folder.rollouts) if batch is None else batch
    entries = [] if wanted is None else list(read(folder.rollouts, [wanted]))
    if not entries:
        raise TrimtabError.field("batch", batch, f"{path} has no rollouts of it on record; leave it out for the last one")
    console = Console()
    skipped = "" if entries[0].trained else f", skipped: {printable(entries[0].reason)}"
    console.print(Text(f"batch {wanted}, trained at version {entries[0].version}{skipped}"))
    left = limit
    for entry in entries:
        for group in entry.groups:
            for rollout in group.rollouts:
                if left and (outcome is None or rollout.outcome.value == outcome):
                    _print(console, tokenizer.decode, group, rollout, entry.version)
                    left -= 1
    if left == limit:
        console.print(f"none of its rollouts is {outcome}")


def _print(console: Console, decode: object, group: Group, rollout: Rollout, version: int) -> None:
    assert callable(decode)
    head = f"slot ({group.slot.epoch}, {group.slot.index}) row {group.prompt} member {rollout.member}"
    console.print(Text.assemble((head, "dim"), f"  score {rollout.score:g}  {rollout.outcome.value}  {rollout.stop.value}"))
    for segment in rollout.segments:
        text, ages = Text("  "), []
        for token, action, v in zip(segment.tokens, segment.action_mask, segment.versions, strict=True):
            age = int(version - v)
            style = AGE_STYLES[min(age, len(AGE_STYLES) - 1)] if action else "dim"
            text.append(printable(str(decode([int(token)]))), style=style)
            ages += [age] if action else []
        runs = ", ".join(f"{age} x{len(list(same))}" for age, same in groupby(ages))
        console.print(text, soft_wrap=True)
        console.print(Text(f"  age of each token: {runs}", style="dim"), soft_wrap=True)


def report(paths: Sequence[Path], out: Path | None) -> None:
    """report.html of one run, or of several compared."""
    from trimtab.report.build import build_report

    for path in paths:
        RunFolder.open(path)
    target = out if out is not None else paths[0] / ("report.html" if len(paths) == 1 else "comparison.html")
    print(build_report(paths, target))


def replay(path: Path, limit: int | None) -> int:
    """Exit code 0 where every update is identical, 3 where one is not."""
    import torch

    torch.set_num_threads(1)
    from trimtab.runtime.replay import replay as again

    found = again(path, limit)
    for b in found.batches:
        if not b.same:
            print(f"batch {b.batch}: gradient norm {b.found!r}, recorded {b.recorded!r}")
    same = sum(b.same for b in found.batches)
    print(f"{same} of {len(found.batches)} updates identical; weights {found.digest[:16]}", end="")
    print(
        ""
        if found.recorded is None
        else ", as the run's own"
        if found.recorded == found.digest
        else f", the run's own are {found.recorded[:16]}"
    )
    return 0 if found.same else 3
