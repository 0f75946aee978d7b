"""What one run of an experiment does. ``train`` trains; others measure what is not an ordinary run.

A runner gets a cell's :class:`Work` and leaves a run folder that ``trimtab.report.runfiles.load`` reads: at least ``summary.json`` and
``metrics.jsonl``, one line a batch. Numbers that no file of a run has go to ``values.json``, by name; the measure ``value`` reads
them. Runs are stored by everything in ``Work`` but the folder, so a runner depends on nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from trimtab.config.load import validate
from trimtab.config.run import RunConfig
from trimtab.lab import warm
from trimtab.lab.mistakes import checked
from trimtab.lab.recipe import WarmstartOptions
from trimtab.lab.spec import merge
from trimtab.records import Json, TrimtabError
from trimtab.report.summary import Summary
from trimtab.store.durable import write_atomic
from trimtab.store.run_folder import RunFolder
from trimtab.telemetry.events import Event
from trimtab.telemetry.held_out import HeldOut
from trimtab.telemetry.metrics import BatchRecord

VALUES = "values.json"

# Name in experiment files -> module:function. Yours need no place here: write module:function in the file.
RUNNERS: Mapping[str, str] = {
    "train": "trimtab.lab.runners:train",
    "switch": "trimtab.lab.runners:switch",
    "timed": "trimtab.lab.timed:run",
}


@dataclass(frozen=True, slots=True)
class Work:
    """One run: its configuration, the experiment's ``options`` for the runner, and the empty folder it is to leave its files in."""

    config: RunConfig
    options: Mapping[str, Json]
    folder: Path

    def leave(self, values: Mapping[str, float]) -> None:
        """Write ``values.json``."""
        write_atomic(self.folder / VALUES, (json.dumps(dict(values)) + "\n").encode())


class Runner(Protocol):
    """``tell(batch)`` may be called as batches end: it moves the progress display."""

    def __call__(self, work: Work, tell: Callable[[int], None]) -> None: ...


R = TypeVar("R", bound=Runner)


def takes(options: type[BaseModel]) -> Callable[[R], R]:
    """Declares a runner's ``options``: others are refused before anything starts. They are kept as its attribute ``options``."""

    def declare(run: R) -> R:
        vars(run)["options"] = options
        return run

    return declare


def refuse(name: str, options: Mapping[str, Json]) -> None:
    """What a runner does not take, where it says what it takes."""
    model = getattr(runner(name), "options", None)
    if isinstance(model, type) and issubclass(model, BaseModel):
        checked(model, options)


def runner(name: str) -> Runner:
    """The function of that name, or of ``module:function``."""
    target = RUNNERS.get(name, name)
    module, colon, attribute = target.partition(":")
    if not colon:
        raise TrimtabError.field("runner", name, f"no such runner; use one of {', '.join(RUNNERS)}, or module:function")
    try:
        return cast(Runner, getattr(import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise TrimtabError.field("runner", name, f"it does not load ({error})") from None


class TrainOptions(BaseModel):
    """``options`` of ``train``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: dict[str, WarmstartOptions] = Field(default_factory=dict, description="made on demand, by name")


class SwitchOptions(TrainOptions):
    """``options`` of ``switch``."""

    before: dict[str, JsonValue] = Field(description="overrides of the first phase, learner.batches among them")


@takes(TrainOptions)
def train(work: Work, tell: Callable[[int], None]) -> None:
    """An ordinary run, without what nobody will look at: rollouts, timeline, checkpoints on the way, report."""
    from trimtab.runtime.run import start

    _whole(start(lean(_warm(work)), work.folder, _Told(tell), report=False))


def _warm(work: Work) -> RunConfig:
    """The configuration with the model that is made on demand, if it names one."""
    recipe = warm.recipe(work.config.model, work.options)
    if recipe is None:
        return work.config
    folder, seconds = warm.made(recipe, work.folder.parents[1] / warm.FOLDER)  # the laboratory's folder
    work.leave({"warm_s": seconds})
    return work.config.model_copy(update={"model": str(folder)})


@takes(SwitchOptions)
def switch(work: Work, tell: Callable[[int], None]) -> None:
    """A run whose configuration changes in the middle: weights, moments and what methods remember are kept.

    The pipeline is filled anew at the switch, by the policy that stands there, so that the first batches after it are fresher.
    ``options.before`` is about the first phase; the cell's configuration is that of the second.
    """
    from trimtab.runtime.run import resume

    before = checked(SwitchOptions, work.options).before
    config = _warm(work)
    first = validate(merge(config.model_dump(mode="json"), before))
    train(Work(first, {}, work.folder), tell)
    written = json.dumps(lean(config).model_dump(mode="json"), indent=1) + "\n"
    write_atomic(RunFolder.open(work.folder).config_json, written.encode())
    _whole(resume(work.folder, [], _Told(tell), report=False, accept_changed_data=True))  # the data may be what changes


def lean(config: RunConfig) -> RunConfig:
    """Without what nobody will look at: rollouts, timeline, checkpoints on the way."""
    without: dict[str, object] = {
        "store": config.store.model_copy(update={"every": 10**9, "rollouts": False}),
        "telemetry": config.telemetry.model_copy(update={"timeline": False, "tensorboard": False}),
        "learner": config.learner.model_copy(update={"keep_refused": False}),
    }
    return config.model_copy(update=without)


def _whole(summary: Summary) -> None:
    if summary.status == "interrupted":
        raise TrimtabError("the run was interrupted; run the experiment again to go on")


class _Told:
    """Passes on that a batch has ended."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell

    def batch(self, record: BatchRecord, waiting_for: str) -> None:
        self._tell(record.batch + 1)

    def event(self, event: Event) -> None: ...
    def evaluated(self, batch: int, found: HeldOut) -> None: ...
