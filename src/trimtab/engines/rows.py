"""The running rows of a continuous batch: a dense table, NumPy columns, so that a decode step costs no loop over rows."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trimtab.engines.protocol import Completion, Request
from trimtab.records import I32, Kept, Sampling, StopReason

_NO_TOKEN = -1


@dataclass(slots=True)
class Running:
    """What is not columnar about a row."""

    request: Request
    incarnation: int
    started: float
    kept: list[I32] = field(default_factory=list)  # one kept set a token, where the distribution is cut


def _widen(column: npt.NDArray[np.generic], width: int, fill: int = 0) -> npt.NDArray[np.generic]:
    wide = np.full((len(column), max(width, 2 * column.shape[1])), fill, column.dtype)
    wide[:, : column.shape[1]] = column
    return wide


class Rows:
    """Rows ``0 .. n-1`` are in use; all columns have room for ``slots`` rows."""

    def __init__(self, slots: int) -> None:
        self.n = 0
        self.running: list[Running | None] = [None] * slots  # None: finished, the place is free
        self.last = np.zeros(slots, np.int64)  # the next input token ...
        self.position = np.zeros(slots, np.int64)  # ... and its position in the sequence
        self.made = np.zeros(slots, np.int64)  # tokens sampled
        self.limit = np.zeros(slots, np.int64)
        self.key = np.zeros(slots, np.uint64)
        self.turn = np.zeros(slots, np.int64)
        self.temperature = np.ones(slots)
        self.cut = np.zeros(slots, np.bool_)
        self.stop = np.full((slots, 2), _NO_TOKEN, np.int64)
        self.tokens = np.zeros((slots, 64), np.int32)
        self.logp = np.zeros((slots, 64), np.float64)
        self.version = np.zeros((slots, 64), np.int32)
        self._columns = [
            "running", "last", "position", "made", "limit", "key", "turn", "temperature", "cut", "stop", "tokens", "logp",
            "version",
        ]  # fmt: skip

    def start(self, row: int, request: Request, incarnation: int) -> None:
        """Put a request at ``row``; its last prompt token is the first input."""
        if request.max_new_tokens > self.tokens.shape[1]:
            self.tokens = _widen(self.tokens, request.max_new_tokens)
            self.logp = _widen(self.logp, request.max_new_tokens)
            self.version = _widen(self.version, request.max_new_tokens)
        if len(request.stop_ids) > self.stop.shape[1]:
            self.stop = _widen(self.stop, len(request.stop_ids), _NO_TOKEN)
        self.running[row] = Running(request, incarnation, time.time())
        self.last[row] = request.prompt[-1]
        self.position[row] = len(request.prompt) - 1
        self.made[row] = 0
        self.limit[row] = request.max_new_tokens
        self.key[row] = request.key
        self.turn[row] = request.turn
        self.temperature[row] = request.sampling.temperature
        self.cut[row] = request.sampling.cut
        self.stop[row] = _NO_TOKEN
        self.stop[row, : len(request.stop_ids)] = request.stop_ids
        self.n = max(self.n, row + 1)

    def drop_last(self, into: int) -> None:
        """Give row ``into`` the contents of the last row, and one row less."""
        self.n -= 1
        for name in self._columns:
            column = getattr(self, name)
            column[into] = column[self.n]
        self.running[self.n] = None

    def samplings(self) -> list[Sampling]:
        """Of the rows in use; every place below ``n`` is taken while a step decodes."""
        return [running.request.sampling for running in self.running[: self.n] if running is not None]

    def record_kept(self, kept_NxV: npt.NDArray[np.bool_]) -> None:
        """Append one kept set to every row whose distribution is cut."""
        for running, kept in zip(self.running, kept_NxV, strict=False):
            if running is not None and running.request.sampling.cut:
                running.kept.append(np.flatnonzero(kept).astype(np.int32))

    def record(self, tokens: npt.NDArray[np.int64], logp: npt.NDArray[np.floating], version: int) -> npt.NDArray[np.int64]:
        """Append one token a row; returns the rows that are finished by it (free places are not in use and never among them)."""
        n = self.n
        at = (np.arange(n), self.made[:n])
        self.tokens[at], self.logp[at], self.version[at] = tokens, logp, version
        self.last[:n] = tokens
        self.position[:n] += 1
        self.made[:n] += 1
        return np.flatnonzero((self.made[:n] >= self.limit[:n]) | (self.stop[:n] == tokens[:, None]).any(1))

    def sequence(self, row: int) -> I32:
        """The tokens whose keys are in the cache: prompt and response without the last token."""
        running = self.running[row]
        assert running is not None
        return np.concatenate([running.request.prompt, self.tokens[row, : self.made[row]]])[:-1]

    def finish(self, row: int, eos_ids: frozenset[int]) -> Completion:
        """Take a finished row out; its place is free."""
        running = self.running[row]
        assert running is not None
        self.running[row] = None
        request, made = running.request, int(self.made[row])
        last = int(self.last[row])
        stopped = last in request.stop_ids
        kept = None
        if request.sampling.cut:
            indptr = np.cumsum([0, *map(len, running.kept)], dtype=np.int64)
            kept = Kept(indptr=indptr, ids=np.concatenate(running.kept))
        return Completion(
            id=request.id,
            tokens=self.tokens[row, :made].copy(),
            logp=self.logp[row, :made].astype(np.float32),
            versions=self.version[row, :made].copy(),
            incarnation=running.incarnation,
            stop=(StopReason.EOS if last in eos_ids else StopReason.STOP) if stopped else StopReason.LENGTH,
            started=running.started,
            finished=time.time(),
            kept=kept,
        )
