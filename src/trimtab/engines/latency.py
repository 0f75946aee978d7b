"""An engine that takes as long as one on another device: each decode step sleeps until ``step_s`` has passed.

For benchmarks and the laboratory: sleeping costs no CPU, so it shows whether sampling and learning overlap on a machine whose
cores they would otherwise share.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trimtab.engines.protocol import Completion, Engine, Request
from trimtab.records import F32, Segment

if TYPE_CHECKING:
    from torch import Tensor


class LatencyEngine:
    """``inner``, with a floor under the time of a step that has rows to decode."""

    def __init__(self, inner: Engine, step_s: float) -> None:
        self._inner, self._step_s = inner, step_s

    def step(self) -> list[Completion]:
        until = time.perf_counter() + self._step_s
        done = self._inner.step()
        if done or self._inner.running:
            time.sleep(max(0.0, until - time.perf_counter()))
        return done

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
        return self._inner.running

    @property
    def reports_kept(self) -> bool:
        return self._inner.reports_kept

    def submit(self, request: Request) -> None:
        self._inner.submit(request)

    def cancel(self, request_id: int) -> None:
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
        self._inner.close()
