"""Two gloo ranks beside one process: the same batches through the same chains, and how far apart they end."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from support.fuzz import entries
from support.updates import MAX_LENGTH, MIXED, make_batch, make_chain, tiny_model, worst
from trimtab.control.protocol import Point
from trimtab.control.registry import method_class, names
from trimtab.learner.options import LearnerOptions
from trimtab.learner.passes import PackedModel
from trimtab.learner.ranks import Alone, ProcessGroup, Ranks
from trimtab.learner.update import Learner, UpdateResult
from trimtab.methods.catalogue import BUNDLES

LEARNER_SIDE = {Point.SHAPE, Point.WEIGH, Point.CREDIT, Point.OBJECTIVE, Point.GRADIENT, Point.STEP}
# The whole batch at once; several updates and passes, with groups split over micro-batches.
RUNS: dict[str, dict[str, Any]] = {"one": {}, "several": {"updates_per_batch": 2, "epochs": 2, "micro_tokens": 24}}


@dataclass(frozen=True)
class Compared:
    """One chain under one run: the largest relative difference of a parameter and of a metric, and whether verdicts agree."""

    method: str
    run: str
    weights: float
    metrics: float
    steps: int  # applied
    verdicts: bool


def cases() -> list[str]:
    """Every method with a learner's side, and every bundle."""
    return [n for n in names() if LEARNER_SIDE & set(method_class(n).points())] + sorted(BUNDLES)


def compare(methods: list[str], folder: Path) -> list[Compared]:
    """Run two processes over ``methods``; the first also runs each chain alone."""
    mp.spawn(_rank, args=(methods, str(folder)), nprocs=2)
    return [Compared(**row) for row in json.loads((folder / "compared.json").read_text())]


def _rank(rank: int, methods: list[str], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    model = tiny_model(torch.float64)
    found = []
    for method in methods:
        for run, options in RUNS.items():
            together = _train(model, method, options, ProcessGroup())
            if rank == 0:
                found.append(_difference(method, run, together, _train(model, method, options, Alone())))
    if rank == 0:
        Path(folder, "compared.json").write_text(json.dumps([asdict(c) for c in found]))
    dist.destroy_process_group()


def _train(model: Any, method: str, options: dict[str, Any], ranks: Ranks) -> tuple[Learner, list[UpdateResult]]:
    listed, where = ([{"name": method}], {}) if method in BUNDLES else entries(method, {}) or ([], {})
    reduction = {k: v.value for k, v in where.items()}
    chosen = LearnerOptions.model_validate({"optimizer": {"lr": 1e-3}, **reduction, **options})
    chain, _ = make_chain(listed, stop=False, **where)
    reference = PackedModel(tiny_model(torch.float64, seed=1))
    learner = Learner(PackedModel(copy.deepcopy(model)), chain.learner(), chosen, max_length=MAX_LENGTH, reference=reference, ranks=ranks)
    results = [r for i in range(2) for r in learner.train(make_batch(model, MIXED, seed=i, number=i))]
    return learner, results


def _difference(method: str, run: str, a: tuple[Learner, list[UpdateResult]], b: tuple[Learner, list[UpdateResult]]) -> Compared:
    gaps = [0.0]
    for x, y in zip(a[1], b[1], strict=True):
        if set(x.notes.metrics) != set(y.notes.metrics):
            gaps.append(float("inf"))
        for name in x.notes.metrics.keys() & y.notes.metrics.keys():
            u, v = (n / d if d else 0.0 for n, d in (x.notes.metrics[name], y.notes.metrics[name]))
            gaps.append(abs(u - v) / max(abs(v), 1e-6))
    return Compared(
        method=method,
        run=run,
        weights=worst(list(a[0].model.parameters()), list(b[0].model.parameters())),
        metrics=max(gaps),
        steps=sum(r.applied for r in b[1]),
        verdicts=[(r.applied, r.reason) for r in a[1]] == [(r.applied, r.reason) for r in b[1]],
    )
