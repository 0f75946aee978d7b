"""``bench publish``: how long generation stands still for new weights, at a million parameters, with 64 rows in generation.

The weights travel as in the local runtime: the learner writes a shared block, the engine stages (copies and digests) beside what it
serves, compares, and commits between two decode steps. ``pause`` is the commit; ``stage`` the copy; ``step after`` the decode step
that follows, which under ``recompute`` computes the keys of all running rows again. Ratios are to an ordinary decode step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from trimtab.bench.models import bench_policy
from trimtab.bench.rows import BenchRow, spread
from trimtab.engines.checkpoint import Policy
from trimtab.engines.digest import weights_digest
from trimtab.engines.options import TorchEngineOptions
from trimtab.engines.protocol import Request
from trimtab.engines.torch_engine import TorchEngine
from trimtab.records import Sampling
from trimtab.weights.shared import SharedBlocks

SLOTS, PROMPT, NEW = 64, 16, 200


def run(rounds: int = 50) -> list[BenchRow]:
    """Rows ``pause/1M``, ``stage/1M``, ``step after/1M`` under both cache policies."""
    policy = bench_policy("1M")
    out = []
    for cache in ("recompute", "keep"):
        out += _measure(policy, cache, rounds)
    return out


def _measure(policy: Policy, cache: str, rounds: int) -> list[BenchRow]:
    engine = TorchEngine(policy, TorchEngineOptions.model_validate({"slots": SLOTS, "cache_policy": cache, "max_context": PROMPT + NEW}))
    weights = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    blocks = SharedBlocks.create(weights)
    times: dict[str, list[tuple[float, float]]] = {"step": [], "stage": [], "pause": [], "step after": []}

    def timed(name: str, work: Callable[[], object]) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        times[name].append((time.process_time() - cpu, time.perf_counter() - wall))

    submitted = 0
    for version in range(1, rounds + 3):
        while engine.running < SLOTS and submitted < (version + 1) * SLOTS:
            engine.submit(_request(submitted))
            submitted += 1
        engine.step()
        timed("step", engine.step)
        with torch.no_grad():
            for tensor in weights.values():
                tensor.add_(1e-6)
        block = version % 2
        blocks.write(block, weights)
        digest = weights_digest(blocks.read(block))
        staged: list[str] = []

        def stage(v: int = version, b: int = block, into: list[str] = staged) -> None:
            into.append(engine.stage(v, 0, blocks.read(b)))

        timed("stage", stage)
        assert staged[0] == digest
        timed("pause", partial(engine.commit, version))
        timed("step after", engine.step)
    blocks.close()
    tag = "" if cache == "recompute" else f" ({cache})"
    step = statistics.median(wall for _, wall in times["step"][2:])
    return [_row(f"{name}/1M{tag}", times[name][2:], step) for name in ("pause", "stage", "step after")]


def _row(case: str, times: list[tuple[float, float]], step: float) -> BenchRow:
    cpu, wall = (statistics.median(column) for column in zip(*times, strict=True))
    return BenchRow(case=case, cpu_s=cpu, wall_s=wall, ratio=wall / step, spread=spread([w / step for _, w in times]))


def _request(number: int) -> Request:
    prompt = np.array([1 + (number + i) % 11 for i in range(PROMPT)], dtype=np.int32)
    return Request(id=number, prompt=prompt, max_new_tokens=NEW, sampling=Sampling(), key=number)
