"""What a run tells the processes that it starts: rollout workers and the evaluator."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.config.models import model_folder
from trimtab.records import Segment
from trimtab.rollout.launch import WorkerProcess
from trimtab.rollout.messages import WorkerSpec
from trimtab.runtime.session import Session
from trimtab.weights.shared import SharedBlocks


def start_worker(session: Session, name: str, blocks: SharedBlocks, probe: Sequence[Segment], threads: int) -> WorkerProcess:
    """A rollout worker that takes its weights from ``blocks`` and scores ``probe`` after every commit."""
    return WorkerProcess(_spec(session, name, blocks, probe, threads), blocks.fd)


def start_evaluator(session: Session) -> WorkerProcess:
    """An evaluator, which reads model folders."""
    return WorkerProcess(_spec(session, "evaluator", None, (), 1))


def _spec(session: Session, name: str, blocks: SharedBlocks | None, probe: Sequence[Segment], threads: int) -> WorkerSpec:
    config = session.config
    return WorkerSpec(
        name=name,
        seed=config.seed,
        model=str(model_folder(config.model)),
        task=config.task,
        verifier=config.verifier,
        rollout=config.rollout,
        engine=config.engine,
        layout=None if blocks is None else blocks.layout,
        probe=tuple(probe),
        threads=threads,
        origin=session.origin,
        timeline=config.telemetry.timeline,
        log=str(session.folder.path / "run.log"),
        data=session.pool.plan.data,
        rescore=None if blocks is None else config.rescore,
    )
