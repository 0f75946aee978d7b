"""A deterministic engine that plays a script: one token a step and row, with slots, versions and publications like the real one.

Weights change nothing it says, but they are staged, digested and committed in earnest.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trimtab import keyed
from trimtab.engines.digest import weights_digest
from trimtab.engines.options import ScriptedEngineOptions
from trimtab.engines.protocol import Completion, Engine, Request
from trimtab.records import F32, Segment, StopReason, TrimtabError

if TYPE_CHECKING:
    from torch import Tensor

    from trimtab.engines.checkpoint import Policy
    from trimtab.engines.forgetting import Phi

Script = Callable[[Request], Sequence[tuple[int, float]]]  # -> (token, log-prob) of every token it would say


def keyed_script(vocabulary: int) -> Script:
    """The uniform policy over ``vocabulary`` ids, drawn with the request's keyed uniforms."""
    logp = -math.log(vocabulary)

    def script(request: Request) -> list[tuple[int, float]]:
        u = keyed.uniform(request.key, request.turn, np.arange(request.max_new_tokens))
        return [(int(token), logp) for token in u * vocabulary]

    return script


@dataclass(slots=True)
class _ScriptedRow:
    request: Request
    script: Sequence[tuple[int, float]]
    delay: int  # steps until its first token
    incarnation: int
    started: float
    versions: list[int] = field(default_factory=list)

    @property
    def stop(self) -> StopReason | None:
        """Why the row has ended; None while it goes on. A script that runs out ends the response like an EOS."""
        made = len(self.versions)
        if made and self.script[made - 1][0] in self.request.stop_ids:
            return StopReason.EOS
        rule = self.request.stop_rule
        if made and rule is not None and rule(np.array([token for token, _ in self.script[:made]], np.int32)):
            return StopReason.STOP
        if made >= self.request.max_new_tokens:
            return StopReason.LENGTH
        return StopReason.EOS if made >= len(self.script) else None


def make(policy: Policy, options: ScriptedEngineOptions, rescore: Phi | None) -> Engine:
    """The engine of a run, serving version 0; it says nothing of the policy."""
    return ScriptedEngine(options, rescore=rescore is not None)


class ScriptedEngine:
    """``script``: a function, or a table by request id; ``delay(request)`` steps pass before a row's first token."""

    reports_kept = True

    def __init__(
        self,
        options: ScriptedEngineOptions | None = None,
        script: Script | Mapping[int, Sequence[tuple[int, float]]] | None = None,
        *,
        delay: Callable[[Request], int] = lambda _: 0,
        version: int = 0,
        incarnation: int = 0,
        rescore: bool = False,
    ) -> None:
        self._rescore = rescore
        self.options = options or ScriptedEngineOptions()
        if isinstance(script, Mapping):
            table = script
            self._script: Script = lambda request: table[request.id]
        else:
            self._script = script or keyed_script(self.options.vocabulary)
        self._delay = delay
        self._version, self._incarnation = version, incarnation
        self.digest: str | None = None  # of the weights served; None before the first publication
        self._staged: tuple[int, int, str] | None = None
        self._queue: deque[Request] = deque()
        self._rows: list[_ScriptedRow] = []

    @property
    def version(self) -> int:
        return self._version

    @property
    def incarnation(self) -> int:
        return self._incarnation

    @property
    def slots(self) -> int:
        return self.options.slots

    @property
    def running(self) -> int:
        return len(self._rows)

    def stage(self, version: int, incarnation: int, weights: Mapping[str, Tensor]) -> str:
        self._staged = None
        if not weights:
            raise TrimtabError(f"publication of version {version} refused: it holds no tensors")
        digest = weights_digest(weights)
        self._staged = (version, incarnation, digest)
        return digest

    def commit(self, version: int) -> None:
        if self._staged is None or self._staged[0] != version:
            staged = "nothing" if self._staged is None else f"version {self._staged[0]}"
            raise TrimtabError(f"commit of version {version} refused: {staged} is staged; stage it again")
        self._version, self._incarnation, self.digest = self._staged
        self._staged = None

    def abort(self) -> None:
        self._staged = None

    def submit(self, request: Request) -> None:
        self._queue.append(request)

    def cancel(self, request_id: int) -> None:
        self._queue = deque(r for r in self._queue if r.id != request_id)
        self._rows = [row for row in self._rows if row.request.id != request_id]

    def step(self) -> list[Completion]:
        while self._queue and len(self._rows) < self.slots:
            request = self._queue.popleft()
            self._rows.append(_ScriptedRow(request, self._script(request), self._delay(request), self._incarnation, time.time()))
        for row in self._rows:
            if row.delay:
                row.delay -= 1
            elif row.stop is None:
                row.versions.append(self._version)
        done = [row for row in self._rows if row.stop is not None and not row.delay]
        self._rows = [row for row in self._rows if row.stop is None or row.delay]
        return [_completion(row, self._rescore) for row in done]

    def score(self, segments: Sequence[Segment]) -> list[F32]:
        """The log-probs as recorded: a script is the same policy under any weights."""
        return [s.behavior_logp[s.action_mask] for s in segments]

    def close(self) -> None:
        self._queue.clear()
        self._rows.clear()


def _completion(row: _ScriptedRow, rescore: bool) -> Completion:
    assert row.stop is not None
    said = row.script[: len(row.versions)]
    return Completion(
        id=row.request.id,
        tokens=np.array([token for token, _ in said], np.int32),
        logp=np.array([logp for _, logp in said], np.float32),
        versions=np.array(row.versions, np.int32),
        incarnation=row.incarnation,
        stop=row.stop,
        started=row.started,
        finished=time.time(),
        # A script is the same policy under any weights: it forgets nothing.
        forgetting=0.0 if rescore and row.versions[0] != row.versions[-1] else None,
    )
