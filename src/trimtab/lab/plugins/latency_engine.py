"""An engine that takes as long as one on another device: a floor under each decode step, and rollouts that are held back.

For benchmarks and the laboratory: sleeping costs no CPU, so it shows whether sampling and learning overlap on a machine whose
cores they would otherwise share.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trimtab.engines import torch_engine
from trimtab.engines.forgetting import Phi
from trimtab.engines.protocol import Completion, Engine, Request
from trimtab.lab.plugins.latency import LatencyEngineOptions
from trimtab.records import F32, Segment

if TYPE_CHECKING:
    from torch import Tensor

    from trimtab.engines.checkpoint import Policy

NAP_S = 0.005  # longest sleep where rollouts are only waited for: messages are seen this often


def make(policy: Policy, options: LatencyEngineOptions, rescore: Phi | None) -> Engine:
    """The torch engine of these options, slower."""
    return LatencyEngine(torch_engine.make(policy, options, rescore), options)


class LatencyEngine:
    """``inner``, slower. A rollout that is held back keeps its slot: requests wait here until ``inner`` may have one of ``slots``."""

    def __init__(self, inner: Engine, options: LatencyEngineOptions) -> None:
        self._inner, self._options = inner, options
        self._queue: deque[Request] = deque()
        self._under_way: dict[int, float] = {}  # request -> when it may end; those that hold a slot
        self._held: list[tuple[float, int, Completion]] = []  # a heap

    def step(self) -> list[Completion]:
        begun = time.perf_counter()
        self._start(begun)
        if len(self._held) == len(self._under_way):  # nothing to decode
            if not self._held:
                return []
            time.sleep(min(NAP_S, max(0.0, self._held[0][0] - begun)))
            return self._release()
        for done in self._inner.step():
            heapq.heappush(self._held, (self._under_way[done.id], done.id, done))
        time.sleep(max(0.0, begun + self._options.step_s - time.perf_counter()))
        return self._release()

    def _start(self, now: float) -> None:
        while self._queue and len(self._under_way) < self.slots:
            request = self._queue.popleft()
            self._under_way[request.id] = now + self._options.hold(request.key)
            self._inner.submit(request)

    def _release(self) -> list[Completion]:
        """What may end by now, in order of time."""
        out = []
        while self._held and self._held[0][0] <= time.perf_counter():
            _, request, completion = heapq.heappop(self._held)
            out.append(replace(completion, finished=time.time()))
            del self._under_way[request]
        return out

    @property
    def version(self) -> int:
        return self._inner.version

    @property
    def incarnation(self) -> int:
        return self._inner.incarnation

    @property
    def slots(self) -> int:
        return self._inner.slots

    @property
    def running(self) -> int:
        return len(self._under_way)

    @property
    def reports_kept(self) -> bool:
        return self._inner.reports_kept

    def submit(self, request: Request) -> None:
        self._queue.append(request)

    def cancel(self, request_id: int) -> None:
        self._queue = deque(r for r in self._queue if r.id != request_id)
        if self._under_way.pop(request_id, None) is not None:
            self._held = [h for h in self._held if h[1] != request_id]
            heapq.heapify(self._held)
            self._inner.cancel(request_id)

    def score(self, segments: Sequence[Segment]) -> list[F32]:
        return self._inner.score(segments)

    def stage(self, version: int, incarnation: int, weights: Mapping[str, Tensor]) -> str:
        return self._inner.stage(version, incarnation, weights)

    def commit(self, version: int) -> None:
        self._inner.commit(version)

    def abort(self) -> None:
        self._inner.abort()

    def close(self) -> None:
        self._queue.clear()
        self._under_way.clear()
        self._held.clear()
        self._inner.close()
