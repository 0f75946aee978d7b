"""A runner for questions of time: a run of the local runtime by the clock, and beside it the discrete-event model of it.

The learner may be given the time of a larger one: after each batch its thread sleeps until the batch has taken ``learner_s``. Sleeping,
like that of the latency engine, costs no CPU, so two cores show what a trainer and samplers on devices of their own would do. What they
cannot hide is a loaded machine: where a decode step or a learner step takes longer than its floor, all arms are slower, not equally so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from trimtab.config.run import LocalOptions, RunConfig
from trimtab.engines.options import TorchEngineOptions
from trimtab.lab.mistakes import checked
from trimtab.lab.plugins.latency import LatencyEngineOptions
from trimtab.lab.runners import Work, lean, takes
from trimtab.lab.series import seconds
from trimtab.records import StoppedByRule, TrimtabError
from trimtab.report import runfiles
from trimtab.report.runfiles import Run
from trimtab.report.summary import Summary
from trimtab.sim.figures import Figures
from trimtab.sim.fit import measured
from trimtab.sim.loop import simulate
from trimtab.sim.model import Given, LogNormal
from trimtab.store.durable import write_atomic
from trimtab.telemetry.events import Event
from trimtab.telemetry.held_out import HeldOut
from trimtab.telemetry.metrics import BatchRecord
from trimtab.telemetry.names import TIME_SHARES

WARM = 10  # batches left out of rates and ages
_ELSE = ("time/wait", "time/log", "time/start", "time/eval", "time/checkpoint", "time/other")
_BUSY = tuple(name for name in TIME_SHARES if name not in _ELSE)


class TimedOptions(BaseModel):
    """``options`` of the experiment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: float = Field(1e9, gt=0, description="of training, start-up left out; the run ends with the batch that is then in hand")
    learner_s: float = Field(0.0, ge=0, description="a batch takes the learner at least this long")
    reach: float | None = Field(None, description="the run also ends when accuracy/train, a mean of `window` batches, is above this")
    window: int = Field(10, ge=1)


class Over(StoppedByRule):
    """The run has had its time, or what it was to reach."""


class TimedRunClock:
    """The learner's floor, the end of the run, and the progress display."""

    def __init__(self, options: TimedOptions, tell: Callable[[int], None]) -> None:
        self._options, self._tell = options, tell
        self._begun: float | None = None
        self._accuracy: list[float] = []

    def batch(self, record: BatchRecord, waiting_for: str) -> None:
        busy = sum(record.value(name) or 0.0 for name in _BUSY)
        if self._begun is None:
            self._begun = record.time - busy - (record.value("time/wait") or 0.0)
        rest = max(0.0, self._options.learner_s - busy)
        time.sleep(rest)
        self._tell(record.batch + 1)
        self._accuracy = [*self._accuracy, record.value("accuracy/train") or 0.0][-self._options.window :]
        if record.time + rest - self._begun >= self._options.seconds:
            raise Over(f"the run has had its {self._options.seconds:g} s")
        mean = sum(self._accuracy) / self._options.window
        if self._options.reach is not None and mean > self._options.reach + 1e-9:  # where the measure `crosses` sees it, too
            raise Over(f"accuracy/train has reached {self._options.reach:g}")

    def event(self, event: Event) -> None: ...
    def evaluated(self, batch: int, found: HeldOut) -> None: ...


@takes(TimedOptions)
def run(work: Work, tell: Callable[[int], None]) -> None:
    """Train by the clock, evaluate the last weights, leave the figures of the run and (``model_...``) of the model.

    Raises:
        TrimtabError: the configuration is of another runtime, or asks for what the options do not know.
    """
    from trimtab.runtime.run import start

    config, options = work.config, checked(TimedOptions, work.options)
    if not isinstance(config.runtime, LocalOptions):
        raise TrimtabError.field("runtime.kind", config.runtime.kind, "time is real in the local runtime only; use local")
    try:
        start(lean(config), work.folder, TimedRunClock(options, tell), report=False)
    except Over:
        found = Summary.read(work.folder)
        after = Summary.evaluations(None, _held_out(config, work.folder, found.batches), None)
        found.model_copy(update={**after, "status": "done"}).write(work.folder, write_atomic)
    told = runfiles.load(work.folder, "")
    warm = max(1, min(WARM, len(told.metrics) // 2))
    values = {"train_s": float(seconds(told)[-1]), "learner_s": _busy(told)}
    if len(told.metrics) > warm:
        real, model = measured(work.folder, warm), predict(config, options, told, warm)
        values |= real.table() | {f"model_{name}": x for name, x in model.table().items()}
        values["share"] = real.batches_per_s / model.batches_per_s
    work.leave(values)


def predict(config: RunConfig, options: TimedOptions, told: Run, warm: int) -> Figures:
    """The model of a run: latencies as they were fixed beforehand, lengths and the learner's time as they were in the run."""
    engine, busy = config.engine, _busy(told)
    slow = engine if isinstance(engine, LatencyEngineOptions) else LatencyEngineOptions()
    hold = LogNormal(0.0) if slow.rollout_s is None else LogNormal.of(slow.rollout_s, slow.rollout_p99_s or slow.rollout_s)
    model = Given(
        step_s=max(slow.step_s, 1e-3),
        tokens=LogNormal(told.mean("length/mean") or 1.0),
        stretch=LogNormal(1.0, slow.slowness),
        hold_s=hold,
        train_s=LogNormal(busy),
        after_s=max(0.0, options.learner_s - busy),
        stage_s=told.mean("publish/stage") or 0.0,
        pause_s=told.mean("publish/pause") or 0.0,
        correct=told.mean("accuracy/train") or 0.0,
        applied=float(told.applied.mean()),
    )
    return simulate(config, model, config.seed, batches=len(told.metrics)).figures(warm)


def _busy(told: Run) -> float:
    """Seconds of a batch at the learner, without what it waits and sleeps."""
    return sum(told.total(name)[0] for name in _BUSY) / max(1, len(told.metrics))


def _held_out(config: RunConfig, folder: Path, batches: int) -> HeldOut:
    """The evaluation of a checkpoint's weights, with an engine that is not slowed down."""
    from typing import cast

    import torch

    from trimtab.config.models import model_folder
    from trimtab.engines.checkpoint import load_policy
    from trimtab.rollout.sampler import Sampler
    from trimtab.store import checkpoint

    weights = cast("dict[str, torch.Tensor]", checkpoint.load(folder / "checkpoints", batches)["model"])
    policy = load_policy(model_folder(config.model), getattr(torch, config.learner.dtype))
    policy.model.load_state_dict(weights, strict=False)  # a tied weight is there once
    engine = TorchEngineOptions(dtype=config.learner.dtype)
    sampler = Sampler.build(policy, task=config.task, verifier=config.verifier, rollout=config.rollout, engine=engine, seed=config.seed)
    try:
        return sampler.evaluate(config.eval)
    finally:
        sampler.close()
