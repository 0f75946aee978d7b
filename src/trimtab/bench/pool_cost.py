"""What a decision of the pool costs the learner's thread: one selection among waiting groups, or accepting a batch's arrivals."""

from __future__ import annotations

import time

import numpy as np

from trimtab.bench.bench_norms import GROUP
from trimtab.control.protocol import AcceptMethod, GroupStats, PoolView, SelectMethod
from trimtab.control.registry import build

WAITING = 3  # batches that wait where a selector selects


def pooled(name: str, groups: int, rounds: int) -> list[float]:
    """CPU seconds of one batch's selection among ``groups`` waiting ones, or of accepting as many groups as a batch has."""
    method, seconds = build(name, {}), []
    want = groups // WAITING
    for i in range(rounds):
        start = time.thread_time()
        if isinstance(method, SelectMethod):
            view = _waiting(groups, want, i)
            start = time.thread_time()
            selection = method.select(view, want)
            if selection is not None:
                method.formed(selection)
        elif isinstance(method, AcceptMethod):
            arrivals = [_arrival(i + j) for j in range(want)]
            start = time.thread_time()
            for group in arrivals:
                method.accept(group)
        seconds.append(time.thread_time() - start)
    return seconds


def _waiting(groups: int, want: int, seed: int) -> PoolView:
    """8 members a group; 30 % of the groups have one that was interrupted."""
    rng = np.random.default_rng(seed)
    now = 20
    entered = np.sort(rng.integers(0, now, groups))
    interrupted = rng.random(groups) < 0.3
    row_M = np.flatnonzero(interrupted)
    generation_M = rng.random(len(row_M)) * 4
    score_M = rng.random(len(row_M))
    mean = entered - np.bincount(row_M, generation_M, minlength=groups) / GROUP
    return PoolView(
        ids=np.arange(groups),
        entered=entered,
        mean_version=mean,
        finished=entered.astype(np.float64),
        first=entered.astype(np.float64),
        members=np.full(groups, GROUP),
        oldest=np.floor(mean).astype(np.int64),
        order=np.arange(groups),
        forgetting=np.where(interrupted, 0.5, np.nan),
        interrupted=interrupted,
        score=rng.random(groups),
        accuracy=rng.random(groups),
        length=rng.random(groups) * 100,
        row_M=row_M,
        finished_M=entered[row_M],
        generation_M=generation_M,
        forgetting_M=score_M,
        now=now,
        batch_groups=want,
    )


def _arrival(seed: int) -> GroupStats:
    rng = np.random.default_rng(seed)
    return GroupStats(
        scores_R=rng.integers(2, size=GROUP).astype(np.float64),
        lengths_R=rng.integers(1, 100, GROUP),
        oldest=3,
        mean_version=4.0,
        now=5,
        truncated_R=np.zeros(GROUP, np.bool_),
    )
