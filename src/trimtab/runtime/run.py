"""A run from start to end: build, restore, drive a runtime, and leave a folder that tells what happened."""

from __future__ import annotations

import gc
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

from torch import Tensor

from trimtab.config.load import differences, override, read_resolved, to_toml, validate
from trimtab.config.models import anchored
from trimtab.config.run import LockstepOptions, RunConfig
from trimtab.engines.checkpoint import save_policy
from trimtab.extras import MissingExtra
from trimtab.records import Json, StoppedByRule, StoppedEarly, TrimtabError
from trimtab.report.summary import Status, Summary
from trimtab.rollout.evaluate import shortfall
from trimtab.runtime.build import Parts, build
from trimtab.runtime.evaluation import best_of
from trimtab.runtime.lockstep import Lockstep
from trimtab.runtime.session import Observer, Session
from trimtab.runtime.snapshots import Snapshots
from trimtab.runtime.stopping import Interrupted, Stop
from trimtab.store.durable import disk, refused, write_atomic
from trimtab.store.resume import prepare_resume
from trimtab.store.run_folder import RunFolder
from trimtab.store.tree import StateTree
from trimtab.telemetry.clock import cpu_used
from trimtab.telemetry.events import Event, Severity
from trimtab.telemetry.logging import configure

log = logging.getLogger(__name__)

Runtime = Callable[[], Callable[[Stop], bool]]  # makes the function that runs until the end (True) or until told (False)

# What a resumed run may change: how long, how durable, how watched. Everything else would make it another experiment.
MAY_CHANGE = (
    "learner.batches",
    "store.",
    "telemetry.",
    "eval.",
    "verifier.",
    "runtime.workers",
    "runtime.worker_threads",
    "runtime.restarts",
    "runtime.start_deadline_s",
    "runtime.publish_deadline_s",
    "runtime.progress_deadline_s",
    "runtime.straggler_deadline_s",
)


def start(config: RunConfig, path: Path, observer: Observer, *, report: bool = True) -> Summary:
    """A new run in a folder that holds none. A folder made for a run that cannot be built goes again.

    ``report``: draw report.html at the end, which takes longer than a tiny run.
    """
    new = not path.exists()
    folder, stop = RunFolder.create(path), Stop()
    with folder, stop.listening():
        with disk(path / "run.log"):
            configure("INFO", path / "run.log", "learner")
        try:
            with stop.at_once():
                parts = build(config)
        except BaseException as error:
            if new:
                shutil.rmtree(path)
            if isinstance(error, Interrupted):
                raise StoppedEarly("stopped before the run had begun: nothing of it is kept") from None
            raise
        try:
            config = _anchored(config)
            _write_config(folder, config)
            session, runtime = _runtime(config, folder, parts, observer, stop)
            return _drive(session, parts, runtime, stop, report=report)
        finally:
            parts.sampler.close()


def resume(path: Path, overrides: Sequence[str], observer: Observer, *, report: bool = True, accept_changed_data: bool = False) -> Summary:
    """Go on from the newest checkpoint that verifies; overrides are limited to what may change.

    ``accept_changed_data``: also where the files of prompts are not what they were, if they have as many rows.
    """
    folder, stop = RunFolder.open(path), Stop()
    with folder, stop.listening():
        with disk(path / "run.log"):
            configure("INFO", path / "run.log", "learner")
        config = changed(read_resolved(folder.config_json), overrides)
        try:
            with stop.at_once():
                parts = build(config)
        except Interrupted:
            raise StoppedEarly("stopped before the run had gone on: it stands where it stood") from None
        try:
            parts.pool.plan.accept_changed_data = accept_changed_data
            point = prepare_resume(folder)
            session, runtime = _runtime(config, folder, parts, observer, stop, None if point is None else point.parts)
            if point is not None:
                session.restore(point.number, point.parts)
            _write_config(folder, config)
            return _drive(session, parts, runtime, stop, fresh=point is None, report=report)
        finally:
            parts.sampler.close()


def _anchored(config: RunConfig) -> RunConfig:
    """The configuration as the run's folder records it: what it names by a relative path is found again from anywhere."""
    reference = config.learner.reference
    learner = config.learner.model_copy(update={"reference": anchored(reference)}) if reference else config.learner
    return config.model_copy(update={"model": anchored(config.model), "task": config.task.anchored(), "learner": learner})


def changed(table: dict[str, Json], overrides: Sequence[str]) -> RunConfig:
    """The saved configuration with overrides, or a sentence naming the fields that may not change."""
    old = validate(table)
    new = validate(override(table, _resolved_keys(overrides)))
    moved = differences(old.model_dump(mode="json"), new.model_dump(mode="json"))
    refused = [key for key in moved if not any(key == may or (may.endswith(".") and key.startswith(may)) for may in MAY_CHANGE)]
    if refused:
        listed = ", ".join(f"{key} ({moved[key][0]!r} in the checkpoint, {moved[key][1]!r} asked)" for key in refused)
        listed_may = ", ".join(f"{may}*" if may.endswith(".") else may for may in MAY_CHANGE)
        raise TrimtabError(f"the checkpoint belongs to another configuration: {listed}; a resumed run may change {listed_may}")
    if new.learner.batches < old.learner.batches:
        raise TrimtabError.field(
            "learner.batches", new.learner.batches, f"the run was planned for {old.learner.batches}; a plan can only grow"
        )
    return new


def _resolved_keys(overrides: Sequence[str]) -> list[str]:
    """``batches=800`` is short for ``learner.batches=800``."""
    return [f"learner.{o}" if o.partition("=")[0].strip() == "batches" else o for o in overrides]


def _write_config(folder: RunFolder, config: RunConfig) -> None:
    write_atomic(folder.config_toml, to_toml(config).encode())
    write_atomic(folder.config_json, (json.dumps(config.model_dump(mode="json"), indent=1) + "\n").encode())


def _drive(session: Session, parts: Parts, runtime: Runtime, stop: Stop, *, fresh: bool = True, report: bool = True) -> Summary:
    session.open()
    if not session.consumed:
        for note in parts.data.notes:  # the log has them, too; the report reads events
            session.say(Event(name="data", severity=Severity.WARN, batch=0, message=note), known=True)
    begun, wall_before = time.perf_counter(), session.tally.wall_s
    used, cpu_before = cpu_used(), session.tally.cpu_s
    status: Status = "failed"
    reason = ""
    try:
        run = runtime()
        finished = False
        with suppress(Interrupted):
            if not session.consumed and "before" not in session.held_out:  # also where a first start got no further
                _say_shortfall(session, parts)
                with stop.at_once():
                    _evaluate(session, parts, "before")
            if fresh:
                session.checkpoint()
            with _heap_set_aside():
                finished = session.consumed >= session.config.learner.batches or run(stop)
        session.checkpoint()
        if finished:
            status = "interrupted"  # until the evaluation and the model folder are there; a resume makes them
            with suppress(Interrupted):
                _publish_for_eval(session, parts)
                with stop.at_once():
                    _evaluate(session, parts, "after")
                save_policy(parts.policy.model, parts.policy.tokenizer, session.folder.model)
                status = "done"
        else:
            status = "interrupted"
    except TrimtabError as error:
        status, reason = ("stopped" if isinstance(error, StoppedByRule) else "failed"), str(error)
        session.checkpoint()
        raise
    except KeyboardInterrupt:
        reason = "ended at once by Ctrl-C: a resume goes on from the newest checkpoint"
        raise
    except Exception as error:
        said = refused(error, session.folder.path) if isinstance(error, OSError) else None
        reason = f"{type(error).__name__}: {error}" if said is None else str(said)
        if said is not None:
            raise said from error
        log.exception("the run broke")
        raise
    finally:
        # The running totals lack what lies outside batches: start-up, evaluations, checkpoints.
        session.tally.wall_s = wall_before + time.perf_counter() - begun
        session.tally.cpu_s = cpu_before + cpu_used() - used
        summary = _summary(session, status, reason)
        summary.write(session.folder.path, write_atomic)
        session.close()
        if report and status != "failed":  # where a rule has stopped the run, the report says why
            _report(session.folder)
    return summary


def _runtime(
    config: RunConfig, folder: RunFolder, parts: Parts, observer: Observer, stop: Stop, saved: Mapping[str, StateTree] | None = None
) -> tuple[Session, Runtime]:
    """The session, and what makes the runtime that drives it; ``saved``: the parts of the checkpoint that it goes on from."""
    options = config.runtime
    session = partial(Session, config, folder, parts.learner, parts.pool, parts.clock, observer, stop)
    if isinstance(options, LockstepOptions):
        snapshots = Snapshots(options)
        if saved is not None:
            snapshots.restore(cast("Sequence[tuple[int, Mapping[str, Tensor]]]", saved["lockstep"]))
        lockstep = session(more_parts=snapshots.parts, after_batch=snapshots.remember)
        return lockstep, lambda: Lockstep(lockstep, parts.sampler, options, snapshots).run
    from trimtab.runtime.local import Local

    lock = threading.Lock()
    local = session(lock=lock)
    return local, lambda: Local(local, parts, options, lock).run


@contextmanager
def _heap_set_aside() -> Iterator[None]:
    """Leave what start-up has built out of garbage collections: some 400,000 objects, most of them transformers'.

    A full collection takes a quarter of a second with them, in the middle of a batch; without them next to nothing.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _publish_for_eval(session: Session, parts: Parts) -> None:
    from trimtab.weights.inprocess import publish

    if parts.sampler.engine.version != session.version.number or parts.sampler.engine.incarnation != session.version.incarnation:
        publish(session.version, session.weights(), [parts.sampler.engine])


def _evaluate(session: Session, parts: Parts, when: str) -> None:
    begun = time.perf_counter()
    with session.clock.span("eval"):
        found = parts.sampler.evaluate(session.config.eval)
    session.evaluated(when, session.consumed, found, time.perf_counter() - begun)


def _say_shortfall(session: Session, parts: Parts) -> None:
    """Where a task holds out fewer prompts than ``eval.prompts``, every number of the run rests on those."""
    if said := shortfall(session.config.eval, parts.sampler.task):
        session.say(Event(name="eval_prompts", severity=Severity.INFO, batch=0, message=said))


def _summary(session: Session, status: Status, reason: str) -> Summary:
    t = session.tally
    held_out = Summary.evaluations(session.held_out.get("before"), session.held_out.get("after"), best_of(session.folder))
    return Summary(
        batches=session.consumed,
        applied=t.applied,
        skipped=t.skipped,
        max_age=t.max_age,
        mean_age=t.age_tokens / t.tokens if t.tokens else 0.0,
        spanning_rollouts=t.spanning,
        verdicts={name: getattr(t, name) for name in ("asked", "errors", "timeouts", "lost", "retried", "given_up")},
        moved_weights=t.moved / t.applied if t.applied else None,
        wall_s=t.wall_s,
        cpu_s=t.cpu_s,
        methods=tuple(m.name for m in session.config.chain().methods),
        seed=session.config.seed,
        status=status,
        reason=reason,
        **held_out,
    )


def _report(folder: RunFolder) -> None:
    from trimtab.report.build import build_report

    try:
        build_report([folder.path], folder.report)
    except MissingExtra as error:  # the page can be made later, from the run's files
        log.info("%s", error)
    except (TrimtabError, OSError) as error:
        log.warning("report.html is not made (%s); once that is mended: trimtab report %s", error, folder.path)
