"""Replay: recorded groups through a fresh learner, from the run's initial model; every update must come out the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from trimtab.config.load import read_resolved, validate
from trimtab.config.models import model_folder
from trimtab.engines.checkpoint import load_policy
from trimtab.engines.digest import weights_digest
from trimtab.learner.passes import PackedModel
from trimtab.records import Batch, Json, TrimtabError
from trimtab.runtime.build import make_learner
from trimtab.store import rollout_log
from trimtab.store.jsonl import read_jsonl
from trimtab.store.run_folder import RunFolder
from trimtab.telemetry.clock import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replayed:
    """One batch: the gradient norm recorded and the one found now."""

    batch: int
    recorded: float | None
    found: float

    @property
    def same(self) -> bool:
        return self.recorded is None or self.recorded == self.found


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """All batches replayed, and the digest of the weights they lead to (``recorded``: of the run's own result, where it is whole)."""

    batches: tuple[Replayed, ...]
    digest: str
    recorded: str | None

    @property
    def same(self) -> bool:
        return all(b.same for b in self.batches) and (self.recorded is None or self.recorded == self.digest)


def replay(path: Path, limit: int | None) -> ReplayOutcome:
    """Feed the first ``limit`` logged batches (all: None) of the run at ``path`` through a learner built from its configuration."""
    import torch

    folder = RunFolder.open(path)
    config = validate(read_resolved(folder.config_json))
    if not config.store.rollouts:
        raise TrimtabError.field("store.rollouts", False, "this run logged no rollouts, so there is nothing to replay")
    policy = load_policy(model_folder(config.model), getattr(torch, config.learner.dtype), config.learner.device)
    learner = make_learner(config, policy, config.chain(), Clock())
    recorded = {int(str(r.get("batch", -1))): _norm(r) for r in read_jsonl(folder.metrics)}
    done = []
    for batch in _batches(folder.rollouts, limit):
        results = learner.train(batch, lag_zero=batch.number < learner.chain.calibration)
        done.append(Replayed(batch.number, recorded.get(batch.number), max(r.raw_norm for r in results)))
    if not done:
        raise TrimtabError(f"{path} has logged no rollouts yet: nothing to replay")
    whole = len(done) == config.learner.batches and folder.model.is_dir()
    return ReplayOutcome(tuple(done), _digest(learner.model), _recorded_digest(folder.model, config.learner.dtype) if whole else None)


def _norm(record: dict[str, Json]) -> float | None:
    metrics = record.get("metrics")
    value = metrics.get("grad/raw_norm") if isinstance(metrics, dict) else None
    return float(value) if isinstance(value, (int, float)) else None


def _batches(rollouts: Path, limit: int | None) -> Iterator[Batch]:
    expected = 0
    for (number, version), entries in groupby(rollout_log.read(rollouts), key=lambda e: (e.batch, e.version)):
        if limit is not None and number >= limit:
            return
        if number > expected:
            log.warning("batches %d to %d are not on record: the replay ends before them", expected, number - 1)
            return
        expected = number + 1
        yield Batch(number=number, version=version, groups=tuple(g for e in entries for g in e.groups))


def _digest(model: PackedModel) -> str:
    return weights_digest({name: p.detach() for name, p in model.model.named_parameters()})


def _recorded_digest(folder: Path, dtype: str) -> str:
    import torch

    return weights_digest({n: p.detach() for n, p in load_policy(folder, getattr(torch, dtype)).model.named_parameters()})
