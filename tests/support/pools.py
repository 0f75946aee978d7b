"""Pools as selectors see them, made from members' numbers; and a queue that brings more than is consumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.control.protocol import Notes, PoolView, SelectMethod

Member = tuple[float, float, float]  # generation, waiting, forgetting (NaN: unknown); generation 0: not interrupted


def pool_view(groups: Sequence[Sequence[Member]], *, now: int = 100, want: int = 1, ids: Sequence[int] | None = None) -> PoolView:
    """One row a group, in order of arrival."""
    rows = [(g, *member) for g, members in enumerate(groups) for member in members]
    hit = [(g, now - w, generation, f) for g, generation, w, f in rows if generation > 0]
    staleness = [np.mean([generation + w for generation, w, _ in members]) for members in groups]
    known = [[f for generation, _, f in members if generation > 0] for members in groups]
    whole = [[now - w for generation, w, _ in members if generation == 0] for members in groups]
    n = len(groups)
    return PoolView(
        ids=np.arange(n) if ids is None else np.array(ids, np.int64),
        entered=np.full(n, now),
        mean_version=np.array([now - s for s in staleness], np.float64),
        finished=np.array([np.mean([now - w for _, w, _ in members]) for members in groups], np.float64),
        first=np.array([min(w, default=np.inf) for w in whole], np.float64),
        members=np.array([len(members) for members in groups], np.int64),
        oldest=np.array([min(int(now - w - 2 * g) for g, w, _ in members) for members in groups], np.int64),
        order=np.arange(n),
        forgetting=np.array([np.mean(f) if f else np.nan for f in known], np.float64),
        interrupted=np.array([bool(f) for f in known], np.bool_),
        score=np.zeros(n),
        accuracy=np.zeros(n),
        length=np.ones(n),
        row_M=np.array([g for g, *_ in hit], np.int64),
        finished_M=np.array([v for _, v, *_ in hit], np.int64),
        generation_M=np.array([g for _, _, g, _ in hit], np.float64),
        forgetting_M=np.array([f for *_, f in hit], np.float64),
        now=now,
        batch_groups=want,
        recorder=Notes(),
    )


@dataclass(slots=True)
class Queue:
    """Groups of one member in a row; every step some arrive and a batch is selected."""

    method: SelectMethod
    want: int
    seed: int = 0

    def run(self, arriving: Sequence[int]) -> tuple[list[int], list[int]]:
        """Waiting groups before, and rejected ones at, each step; steps without a batch reject none."""
        draw, waiting, waits, rejects, born = np.random.default_rng(self.seed), [], [], [], 0
        for step, n in enumerate(arriving):
            waiting += [(born + i, step, float(draw.integers(0, 4)), float(draw.random())) for i in range(n)]
            born += n
            view = pool_view([[(g, float(step - at), f)] for _, at, g, f in waiting], want=self.want, ids=[i for i, *_ in waiting])
            selection = self.method.select(view, self.want)
            waits.append(len(waiting))
            rejects.append(0 if selection is None else len(selection.reject))
            if selection is not None:
                self.method.formed(selection)
                gone = {*selection.take, *selection.reject}
                waiting = [w for w in waiting if w[0] not in gone]
        return waits, rejects
