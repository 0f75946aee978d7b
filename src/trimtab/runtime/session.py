"""A run's learner side: consume a batch, tell what happened, make it durable. Both runtimes drive one of these.

Order at every batch: train -> pool.consumed (the version rises if a step was applied) -> publish -> record -> detectors -> checkpoint
when due. The session holds no schedule: where batches come from and where weights go is the runtime's affair.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, cast

from torch import Tensor

from trimtab.config.run import RunConfig
from trimtab.control.protocol import State
from trimtab.learner.measure import measure
from trimtab.learner.update import Learner, UpdateResult
from trimtab.pool.pool import Pool
from trimtab.pool.results import Formed
from trimtab.records import Group, Json, Outcome, StoppedByDetector, TrimtabError, Version
from trimtab.rollout.verdict_counts import VerdictCounts
from trimtab.runtime.stopping import Stop
from trimtab.store import checkpoint
from trimtab.store.jsonl import JsonLines
from trimtab.store.rollout_log import RolloutLog
from trimtab.store.run_folder import RunFolder
from trimtab.store.tree import StateTree
from trimtab.telemetry import held_out
from trimtab.telemetry.clock import Clock, Interval
from trimtab.telemetry.detectors import Detectors
from trimtab.telemetry.events import Event, Severity
from trimtab.telemetry.held_out import HeldOut
from trimtab.telemetry.metrics import BatchRecord, Metrics
from trimtab.telemetry.sinks import FanOut, open_sinks
from trimtab.weights.publish import Times

log = logging.getLogger(__name__)

FAULTS = 10  # most frequent reasons of missing verdicts that a batch's record names


class Observer(Protocol):
    """Who watches a run: the command line's progress display, or nobody."""

    def batch(self, record: BatchRecord, waiting_for: str) -> None:
        return

    def event(self, event: Event) -> None:
        return

    def evaluated(self, batch: int, found: HeldOut) -> None:
        return


class Nobody(Observer):
    """Watches nothing."""


@dataclass(slots=True)
class RunTotals:
    """Running totals of a run, kept over resumes."""

    applied: int = 0
    skipped: int = 0
    tokens: float = 0.0
    age_tokens: float = 0.0  # sum of ages over trained tokens
    max_age: int = 0
    spanning: int = 0
    asked: int = 0  # responses that were to be judged
    errors: int = 0  # of them
    timeouts: int = 0
    lost: int = 0
    retried: int = 0
    given_up: int = 0
    moved: float = 0.0  # sum over applied batches of the share of published weights that a step changed
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def state_dict(self) -> dict[str, Json]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class SamplerWindow:
    """What the sampler side reports between two batches."""

    busy: float = 0.0
    idle: float = 0.0
    cpu: float = 0.0
    verdicts: VerdictCounts = field(default_factory=VerdictCounts)
    given_up: int = 0  # groups that failed for the last time
    intervals: list[Interval] = field(default_factory=list)
    published: list[Times] = field(default_factory=list)


class Session:
    """Owns a run folder (its lock is held by the caller), the learner, and what is written about the run.

    What a runtime brings: ``lock``, held while the pool is touched, where another thread touches it, too; ``more_parts``, what it adds
    to a checkpoint; ``after_batch``, told the version and the weights of every consumed batch, applied or not, before a checkpoint.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        learner: Learner,
        pool: Pool,
        clock: Clock,
        observer: Observer,
        stop: Stop | None = None,
        *,
        lock: AbstractContextManager[object] | None = None,
        more_parts: Callable[[], dict[str, StateTree]] = dict,
        after_batch: Callable[[Version, Mapping[str, Tensor]], None] = lambda version, weights: None,
    ) -> None:
        self.config, self.folder, self.learner, self.pool, self.clock, self.observer = config, folder, learner, pool, clock, observer
        self.stop = stop or Stop()
        self.version = Version(0, 0)
        self.consumed = 0
        self.tally = RunTotals()
        self.detectors = Detectors(config.telemetry.detectors)
        self.held_out: dict[str, HeldOut] = {}  # by when: before, during (the latest), after
        self.origin = time.perf_counter()
        self._sinks: FanOut | None = None
        self._rollouts: RolloutLog | None = None
        self._cpu = time.process_time()
        self._stop: Event | None = None
        self._lock = lock or nullcontext()
        self._more_parts, self._after_batch = more_parts, after_batch

    # ------------------------------------------------------------------------------------------------ open and close
    def open(self) -> None:
        """Open the logs for appending; call after a resume has cut them."""
        self._sinks = open_sinks(self.folder.path, self.config.telemetry, JsonLines)
        self._rollouts = RolloutLog(self.folder.rollouts)

    def close(self) -> None:
        if self._rollouts is not None:
            self._rollouts.flush()
        if self._sinks is not None:
            with self._lock:
                untold = self.pool.untold()
            self._sinks.decisions(self.consumed, untold)  # a resume cuts them off and has them from its checkpoint
            self._sinks.close()

    # ------------------------------------------------------------------------------------------------ a batch
    def consume(
        self, formed: Formed, publish: Callable[[], None], window: Callable[[], SamplerWindow], waiting_for: Callable[[], str]
    ) -> None:
        """Train on a batch, publish if a step was applied, record it; raise ``StoppedByDetector`` where a detector says so.

        Where publishing fails, the batch is trained all the same: it is recorded before the error goes on.
        """
        batch = formed.batch
        with self.stop.in_hand(lambda: not self.learner.committed):
            results = self.learner.train(batch, lag_zero=self.consumed < self.learner.chain.calibration)
        applied = any(r.applied for r in results)
        if applied:
            self.version = self.version.next()
        with self.clock.span("publish"), self._lock:
            self.pool.consumed(self.version.number, [r.told for r in results if r.told is not None])
        self.consumed += 1
        self._after_batch(self.version, self.weights())
        failed: TrimtabError | None = None
        if applied:
            with self.clock.span("publish"):
                try:
                    publish()
                except TrimtabError as error:
                    failed = error
        refused = next((r.reason for r in results if r.broken), "")
        if refused and self.config.learner.keep_refused:
            self._keep_refused(formed, refused)
        with self.clock.span("log"):
            record, events = self._record(formed, results, window())
            self._tell(record, events, waiting_for())
        if failed is not None:
            raise failed
        if self.consumed % self.config.store.every == 0:
            self.checkpoint()
        if self._stop is not None:
            raise StoppedByDetector(f"detector {self._stop.name} stopped the run at batch {self._stop.batch}: {self._stop.message}")

    def _record(self, formed: Formed, results: Sequence[UpdateResult], window: SamplerWindow) -> tuple[BatchRecord, list[Event]]:
        assert self._sinks is not None
        assert self._rollouts is not None
        batch = formed.batch
        metrics, ages = measure(batch, results)
        metrics.extend({}, formed.notes.metrics)
        _verdicts(metrics, window)
        lap = self._times(metrics, window)
        values = metrics.values()
        record = BatchRecord(
            batch=batch.number,
            version=self.version.number,
            incarnation=self.version.incarnation,
            time=time.perf_counter() - self.origin,
            applied=any(r.applied for r in results),
            reason="; ".join(dict.fromkeys(r.reason for r in results if r.reason)),
            metrics=values,
            ages=ages.tokens,
            ages_generation=ages.generation,
            by_age=ages.moved,
            faults=dict(window.verdicts.reasons.most_common(FAULTS)),
        )
        self._count(record, lap, window)
        decisions = [*formed.notes.decisions, *(d for r in results for d in r.notes.decisions)]
        self._sinks.decisions(batch.number, decisions)
        self._sinks.timeline(batch.number, [*self.clock.take("learner", self.origin), *window.intervals])
        events = self.detectors.feed(record)
        for event in events:
            self._sinks.event(event)
        if self.config.store.rollouts:
            self._rollouts.append(batch.number, batch.version, batch.groups, trained=record.applied, reason=record.reason)
        self._sinks.batch(record)
        return record, events

    def _times(self, metrics: Metrics, window: SamplerWindow) -> float:
        lap = self.clock.lap()
        for name, seconds in lap.wall.items():
            metrics.put(f"time/{name}", seconds)
        tokens = metrics.values()["tokens/trained"]
        assert isinstance(tokens, float | int)
        metrics.metric("throughput/tokens_per_s", float(tokens), lap.elapsed)
        metrics.metric("sampler/busy", window.busy, window.busy + window.idle)
        metrics.metric("sampler/idle", window.idle, window.busy + window.idle)
        for times in window.published:
            metrics.put("publish/stage", times.stage)
            metrics.put("publish/pause", times.pause)
            metrics.put("publish/commit", times.commit)
        with self._lock:
            facts = self.pool.facts(time.monotonic())
        metrics.put("pool/waiting", facts.counts["waiting"])
        metrics.put("pool/running", facts.counts["running"])
        return lap.elapsed

    def _count(self, record: BatchRecord, seconds: float, window: SamplerWindow) -> None:
        t = self.tally
        t.applied += record.applied
        t.skipped += not record.applied
        tokens = sum(record.ages.values())
        t.tokens += tokens
        t.age_tokens += sum(int(age) * n for age, n in record.ages.items())
        t.max_age = max(t.max_age, *(int(age) for age in record.ages), 0)
        t.spanning += int(record.value("rollouts/spanning") or 0)
        verdicts = window.verdicts
        t.asked += verdicts.asked
        t.errors += verdicts.outcomes[Outcome.ERROR.value]
        t.timeouts += verdicts.outcomes[Outcome.TIMEOUT.value]
        t.lost, t.retried, t.given_up = t.lost + verdicts.lost, t.retried + verdicts.retried, t.given_up + window.given_up
        t.moved += record.value("step/moved") or 0.0
        t.wall_s += seconds
        now = time.process_time()
        t.cpu_s += now - self._cpu + window.cpu
        self._cpu = now

    def _tell(self, record: BatchRecord, events: Sequence[Event], waiting_for: str) -> None:
        for event in events:
            self.observer.event(event)
            if event.severity is Severity.STOP:
                self._stop = event
        self.observer.batch(record, waiting_for)

    def _keep_refused(self, formed: Formed, reason: str) -> None:
        """The groups of a refused step, for inspection."""
        from trimtab.store.codec import groups_to_table, to_parquet
        from trimtab.store.durable import disk, write_atomic

        path = self.folder.path / "refused" / f"{formed.batch.number:06d}.parquet"
        with disk(path.parent):
            path.parent.mkdir(exist_ok=True)
        write_atomic(path, to_parquet(groups_to_table(formed.batch.groups)))
        log.warning("batch %d refused: %s; its groups are in %s", formed.batch.number, reason, path)

    def evaluated(self, when: str, batch: int, found: HeldOut, seconds: float) -> None:
        """Record an evaluation after ``batch`` consumed batches; ``when`` is before, during or after."""
        assert self._sinks is not None
        self.held_out[when] = found
        self._sinks.evaluated(batch, when, found, seconds)
        self.observer.evaluated(batch, found)
        if found.doubtful:
            self.say(held_out.doubt(found, batch))

    def say(self, event: Event, *, known: bool = False) -> None:
        """An event that no detector found. ``known``: whoever watches has been told in the log."""
        assert self._sinks is not None
        self._sinks.event(event)
        if not known:
            self.observer.event(event)

    # ------------------------------------------------------------------------------------------------ durable state
    def weights(self) -> dict[str, Tensor]:
        """The model's tensors by name; a tied weight once."""
        return {name: p.detach() for name, p in self.learner.model.model.named_parameters()}

    def checkpoint(self) -> None:
        """Everything of invariant 6, written atomically; a checkpoint of this number that verifies is left as it is."""
        with self.clock.span("checkpoint"):
            if self._rollouts is not None:
                self._rollouts.flush()
            self.folder.sync_logs()
            checkpoint.save(self.folder.checkpoints, self.consumed, self.parts(), keep=self.config.store.keep)

    def parts(self) -> dict[str, StateTree]:
        with self._lock:
            pool: StateTree = {"state": cast(StateTree, self.pool.state_dict()), "groups": self.pool.waiting_groups()}
            of_pool = cast(StateTree, self.pool.chain.state_dict())
        return self._more_parts() | {
            "model": cast(StateTree, self.weights()),
            "learner": cast(StateTree, self.learner.state_dict()),
            "methods": {"pool": of_pool, "learner": cast(StateTree, self.learner.chain.state_dict())},
            "pool": pool,
            "run": {
                "version": self.version.number,
                "incarnation": self.version.incarnation,
                "tally": cast(StateTree, self.tally.state_dict()),
                "detectors": cast(StateTree, self.detectors.state_dict()),
                "held_out": {when: found.to_json() for when, found in self.held_out.items()},
            },
        }

    def restore(self, number: int, parts: Mapping[str, StateTree]) -> None:
        """Stand where the checkpoint stood, under the next incarnation."""
        import torch

        methods = cast("Mapping[str, dict[str, State]]", parts["methods"])
        if methods.keys() != {"pool", "learner"}:
            raise TrimtabError(
                f"checkpoint {number} was written by an earlier Trimtab, which kept the state of methods in one piece and not by side; "
                f"resume it with the version that wrote it, or start a new run from its weights"
            )
        model = cast(Mapping[str, Tensor], parts["model"])
        own = dict(self.learner.model.model.named_parameters())
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(model[name])
        self.learner.load_state_dict(cast(dict[str, object], parts["learner"]))
        self.learner.chain.load_state_dict(methods["learner"])
        self.pool.chain.load_state_dict(methods["pool"])
        pool = cast(Mapping[str, StateTree], parts["pool"])
        self.pool.load_state_dict(cast(Json, pool["state"]), cast("list[Group]", pool["groups"]))
        run = cast(Mapping[str, Json], parts["run"])
        self.version = Version(int(str(run["incarnation"])), int(str(run["version"]))).restored()
        self.pool.incarnation = self.version.incarnation
        self.consumed = number
        for name, value in cast(dict[str, float], run["tally"]).items():
            setattr(self.tally, name, value)
        self.detectors.load_state_dict(cast(Mapping[str, Json], run["detectors"]))
        self.held_out = held_out.restored(run)


def _verdicts(metrics: Metrics, window: SamplerWindow) -> None:
    """What the verifier said since the last batch, of all it was asked about: shares of what survived would hide what did not."""
    counts = window.verdicts
    if counts.asked:
        for outcome in Outcome:
            metrics.metric(f"outcome/{outcome.value}", counts.outcomes[outcome.value], counts.asked)
    metrics.put("rollouts/lost", counts.lost)
    metrics.put("rollouts/retried", counts.retried)
    metrics.put("groups/given_up", window.given_up)
