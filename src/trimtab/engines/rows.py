"""The running rows of a continuous batch: a dense table, NumPy columns, so that a decode step costs no loop over rows."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from trimtab.engines.protocol import Completion, Request
from trimtab.records import I32, Kept, Sampling, StopReason

_NO_TOKEN = -1
F64 = npt.NDArray[np.float64]


@dataclass(slots=True)
class Running:
    """What is not columnar about a row."""

    request: Request
    incarnation: int
    started: float
    versions: list[tuple[int, int]]  # (tokens made before, version): from that token on, the version samples
    kept: list[I32] = field(default_factory=list)  # one kept set a token, where the distribution is cut
    forgetting: float | None = None  # of the tokens made before the last swap
    stopped: bool = False  # by its request's rule


class Rows:
    """Rows ``0 .. n-1``, those in ``holes`` free; all columns have room for ``slots`` rows."""

    def __init__(self, slots: int) -> None:
        self.n = 0
        self.holes: list[int] = []  # free places below n
        self.cut = 0  # rows whose distribution is cut
        self.ruled = 0  # rows whose requests have a rule that ends them
        self.running: list[Running | None] = [None] * slots  # None: the place is free
        self.last = np.zeros(slots, np.int64)  # the next input token ...
        self.position = np.zeros(slots, np.int64)  # ... and its position in the sequence
        self.made = np.zeros(slots, np.int64)  # tokens sampled
        self.limit = np.zeros(slots, np.int64)
        self.temperature = np.ones(slots)
        self.stop = np.full((slots, 1), _NO_TOKEN, np.int64)
        self.uniform = np.zeros((slots, 64))  # one a token
        self.tokens = np.zeros((slots, 64), np.int32)
        self.logp = np.zeros((slots, 64))
        self.speed = np.ones(slots)  # tokens a step, at most 1 (below: an engine that plays a slower one)
        self.ahead = np.zeros(slots)  # share of the next token that earlier steps have brought
        self._index = np.arange(slots)

    def start(self, row: int, request: Request, uniform: F64, version: int, incarnation: int, started: float, speed: float = 1.0) -> None:
        """Put a request at ``row``; its last prompt token is the first input."""
        self._widen(request.max_new_tokens, len(request.stop_ids))
        self.running[row] = Running(request, incarnation, started, [(0, version)])
        self.n = max(self.n, row + 1)
        self.cut += request.sampling.cut
        self.ruled += request.stop_rule is not None
        self.last[row] = request.prompt[-1]
        self.position[row] = len(request.prompt) - 1
        self.made[row] = 0
        self.limit[row] = request.max_new_tokens
        self.temperature[row] = request.sampling.temperature
        self.stop[row] = _NO_TOKEN
        self.stop[row, : len(request.stop_ids)] = request.stop_ids
        self.uniform[row, : len(uniform)] = uniform
        self.speed[row], self.ahead[row] = speed, 0.0

    def _widen(self, tokens: int, stops: int) -> None:
        if tokens > self.tokens.shape[1]:
            more = ((0, 0), (0, max(tokens, 2 * self.tokens.shape[1]) - self.tokens.shape[1]))
            self.uniform, self.tokens, self.logp = np.pad(self.uniform, more), np.pad(self.tokens, more), np.pad(self.logp, more)
        if stops > self.stop.shape[1]:
            self.stop = np.pad(self.stop, ((0, 0), (0, stops - self.stop.shape[1])), constant_values=_NO_TOKEN)

    def drop_last(self, into: int) -> None:
        """Give row ``into`` the contents of the last row, and one row less."""
        self.n -= 1
        last = self.n
        for column in (
            self.last, self.position, self.made, self.limit, self.temperature, self.stop, self.uniform, self.tokens, self.logp,
            self.speed, self.ahead,
        ):  # fmt: skip
            column[into] = column[last]
        self.running[into] = self.running[last]
        self.running[last] = None

    def free(self, row: int) -> Running:
        """Take a row out; its place is free until it is started again or dropped."""
        running = self.running[row]
        assert running is not None
        self.running[row] = None
        self.holes.append(row)
        self.cut -= running.request.sampling.cut
        self.ruled -= running.request.stop_rule is not None
        return running

    def take_free(self) -> list[int]:
        """All free places, the holes first; the caller starts rows there in this order, and drops the holes that remain."""
        holes, self.holes = sorted(self.holes), []
        return [*holes, *range(self.n, len(self.running))]

    def samplings(self) -> list[Sampling]:
        """Of the rows in use; every place below ``n`` is taken while a step decodes."""
        return [running.request.sampling for running in self.running[: self.n] if running is not None]

    def draws(self) -> F64:
        """The uniform of each row's next token."""
        n = self.n
        return self.uniform[self._index[:n], self.made[:n]]

    def new_version(self, version: int) -> None:
        """The next tokens are sampled by ``version``."""
        for running, made in zip(self.running, self.made, strict=True):
            if running is not None:
                running.versions.append((int(made), version))

    def due(self) -> npt.NDArray[np.int64]:
        """The rows that take the token of this step: all, where none is slow. Call it once a step."""
        ahead = self.ahead[: self.n]
        ahead += self.speed[: self.n]
        due = np.flatnonzero(ahead >= 1.0 - 1e-9)
        ahead[due] -= 1.0
        return due

    def record_kept(self, kept_NxV: npt.NDArray[np.bool_], due: npt.NDArray[np.int64]) -> None:
        """Append one kept set to every due row whose distribution is cut."""
        for row in due:
            running = self.running[row]
            if running is not None and running.request.sampling.cut:
                running.kept.append(np.flatnonzero(kept_NxV[row]).astype(np.int32))

    def record(self, tokens: npt.NDArray[np.int64], logp: npt.NDArray[np.floating], due: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Append one token to every due row; returns the rows that it finishes."""
        at = (due, self.made[due])
        self.tokens[at], self.logp[at] = tokens[due], logp[due]
        self.last[due] = tokens[due]
        self.position[due] += 1
        self.made[due] += 1
        finished = self.made[due] >= self.limit[due]
        for stop in self.stop.T:
            finished |= stop[due] == tokens[due]
        if self.ruled:
            finished |= np.array([self._stops(row) for row in due.tolist()], np.bool_)
        return due[finished]

    def _stops(self, row: int) -> bool:
        running = self.running[row]
        if running is not None and running.request.stop_rule is not None:
            running.stopped = running.request.stop_rule(self.tokens[row, : self.made[row]])
        return running is not None and running.stopped

    def sequence(self, row: int) -> I32:
        """The tokens whose keys are in the cache: prompt and response without the last token."""
        running = self.running[row]
        assert running is not None
        return np.concatenate([running.request.prompt, self.tokens[row, : self.made[row]]])[:-1]

    def finish(self, row: int, eos_ids: frozenset[int]) -> Completion:
        """Take a finished row out and report it."""
        running = self.free(row)
        request, made, last = running.request, int(self.made[row]), int(self.last[row])
        starts, versions = zip(*running.versions, strict=True)
        spans = [after - before for before, after in pairwise([*starts, made])]
        if last in request.stop_ids:
            stop = StopReason.EOS if last in eos_ids else StopReason.STOP
        else:
            stop = StopReason.STOP if running.stopped else StopReason.LENGTH
        return Completion(
            id=request.id,
            tokens=self.tokens[row, :made].copy(),
            logp=self.logp[row, :made].astype(np.float32),
            versions=np.array(versions, np.int32).repeat(spans),
            incarnation=running.incarnation,
            stop=stop,
            started=running.started,
            finished=time.time(),
            kept=kept_sets(running),
            forgetting=running.forgetting,
        )


def kept_sets(running: Running) -> Kept | None:
    """Of the tokens made so far; None where the distribution is whole."""
    if not running.request.sampling.cut:
        return None
    return Kept(indptr=np.cumsum([0, *map(len, running.kept)], dtype=np.int64), ids=np.concatenate(running.kept))
