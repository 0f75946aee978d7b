"""A small experiment on the tiny model, and runs made of given numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from support import runs
from trimtab.config.load import to_toml
from trimtab.lab.measures import CellRun
from trimtab.lab.schedule import Job, State
from trimtab.lab.store import Meta
from trimtab.records import Json
from trimtab.report.summary import Summary

EXPERIMENT = """
claim = "Lag changes something."
source = "nobody"
falsified_by = "nothing"
preset = "preset.toml"
seeds = 2

[base]
learner.batches = 3

[grid.lag]
key = "runtime.lag"
values = [0, 2]

[arms.tis]
label = "sequence-TIS"
methods = ["seq_tis", "grpo"]

[arms.vcpo]
methods = ["vcpo"]
only = { lag = [2] }

[measures]
final = { kind = "held_out" }
mean = { kind = "mean", metric = "accuracy/train", label = "mean accuracy" }

[[checks]]
says = "Accuracy is at least 0."
measure = "mean"
at_least = 0.0

[[figures]]
kind = "curves"
name = "curves"
title = "Curves"
panels = [{ metric = "accuracy/train" }, { metric = "grad/raw_norm", log = true }]

[[figures]]
kind = "sweep"
name = "sweep"
title = "Sweep"
axis = "lag"
measure = "mean"

[[figures]]
kind = "bars"
name = "bars"
title = "Bars"
measure = "mean"
by = "lag"

[[figures]]
kind = "heat"
name = "heat"
title = "Heat"
measure = "mean"
rows = "arm"
columns = "lag"

[[references]]
source = "a dream"
[references.values]
mean = { "tis/lag=0" = [0.25, 0.35], "tis/lag=2" = 0.5 }
"""


def experiment(folder: Path, text: str = EXPERIMENT, name: str = "mine") -> Path:
    """The file of an experiment on the tiny model, beside its preset."""
    config = runs.config(folder, ["seq_tis", "grpo"], runtime={"kind": "lockstep", "lag": 1}, rollout={"prompts_per_batch": 2})
    (folder / "preset.toml").write_text(to_toml(config))
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def run(
    columns: Mapping[str, Sequence[float | None]],
    *,
    summary: Summary | None = None,
    events: Sequence[tuple[str, int]] = (),
    lag: int | None = None,
) -> CellRun:
    """A run with these metrics; None where a batch lacks one. A batch takes half a second."""
    n = max(len(c) for c in columns.values())
    rows: list[dict[str, Json]] = []
    for i in range(n):
        metrics: dict[str, Json] = {name: x for name, column in columns.items() if i < len(column) and (x := column[i]) is not None}
        rows.append({"batch": i, "time": (i + 1) / 2, "metrics": metrics})
    told: list[dict[str, Json]] = [{"name": name, "batch": batch} for name, batch in events]
    config = "" if lag is None else f'[runtime]\nkind = "lockstep"\nlag = {lag}\n'
    return CellRun("run", rows, told, [], [], [], summary, config, {})


class Watching:
    """A display that remembers."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.failed: dict[str, str] = {}
        self.left: list[float | None] = []

    def update(self, state: State) -> None: ...

    def ended(self, job: Job, meta: Meta, state: State) -> None:
        self.ran.append(job.name)
        self.left.append(state.left_s(1))

    def broke(self, job: Job, why: str) -> None:
        self.failed[job.name] = why
