"""Requests that wait for a place: queued as submitted, then made ready a block at a time.

Making a block ready is one forward for the keys of its prompts (once for equal prompts: a group's members share theirs) and one
draw of its uniforms. Starting a ready request copies its keys, so that a place is refilled without a forward of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from trimtab import keyed
from trimtab.engines.forward import Forward
from trimtab.engines.protocol import Request
from trimtab.engines.rows import F64
from trimtab.records import I32


@dataclass(slots=True)
class ReadyRequest:
    """``keys``: of the prompt without its last token, ``[layers, 2, kv_heads, T, D]``; None for a prompt of one token."""

    request: Request
    uniform: F64
    keys: Tensor | None = None


class WaitingRequests:
    """First in, first out. ``block``: how many requests are made ready together (as many rows of keys are held)."""

    def __init__(self, forward: Forward, block: int) -> None:
        self._forward, self._block = forward, block
        self._queue: deque[Request] = deque()
        self._ready: deque[ReadyRequest] = deque()
        self._stale = False

    def __len__(self) -> int:
        return len(self._queue) + len(self._ready)

    def add(self, request: Request) -> None:
        self._queue.append(request)

    def remove(self, request_id: int) -> bool:
        """Forget a request; False if it is not here."""
        before = len(self)
        self._queue = deque(r for r in self._queue if r.id != request_id)
        self._ready = deque(r for r in self._ready if r.request.id != request_id)
        return len(self) < before

    def new_weights(self) -> None:
        """Keys computed so far are of weights that are no longer served."""
        self._stale = True

    def take(self, wanted: int) -> list[ReadyRequest]:
        """The next requests, ready; at most ``wanted``."""
        if self._stale and wanted:
            self._stale = False
            self._compute_keys(self._ready)
        while len(self._ready) < wanted and self._queue:
            self._make_ready()
        return [self._ready.popleft() for _ in range(min(wanted, len(self._ready)))]

    def _make_ready(self) -> None:
        requests = [self._queue.popleft() for _ in range(min(self._block, len(self._queue)))]
        longest = max(r.max_new_tokens for r in requests)
        key, turn = np.array([r.key for r in requests], np.uint64), np.array([r.turn for r in requests])
        uniforms = keyed.uniform(key[:, None], turn[:, None], np.arange(longest))
        block = [ReadyRequest(r, uniform[: r.max_new_tokens]) for r, uniform in zip(requests, uniforms, strict=True)]
        self._compute_keys(block)
        self._ready.extend(block)

    def _compute_keys(self, block: Iterable[ReadyRequest]) -> None:
        sharing: dict[bytes, list[ReadyRequest]] = {}
        for ready in block:
            if len(ready.request.prompt) > 1:
                sharing.setdefault(ready.request.prompt.tobytes(), []).append(ready)
        groups = list(sharing.values())
        prompts: list[I32] = [group[0].request.prompt[:-1] for group in groups]
        for index, _, keys in self._forward.keys(prompts):
            for ready in groups[index]:
                ready.keys = keys
