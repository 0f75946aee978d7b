"""What the rollout tests drive: an engine whose rows finish in any order, a verifier in this process, a task of sums.

All three behave like the real ones; only their timing is in the test's hands.
"""

from __future__ import annotations

import random
from collections.abc import Set

import numpy as np

from support.tiny import CHARS
from trimtab import keyed
from trimtab.engines.protocol import Completion, Request
from trimtab.records import I32, Kept, Outcome, Slot, StopReason, TrimtabError
from trimtab.tasks.protocol import Prompt, Verdict
from trimtab.tasks.verifier_process import judge

EOS = 2
FIRST = 3  # id of the first character


def response_of(key: int, limit: int) -> I32:
    """What :class:`AnyOrderEngine` samples under ``key``: characters until the first uniform below 0.15, then EOS."""
    ids: list[int] = []
    while len(ids) < limit:
        u = float(keyed.uniform(key, 0, len(ids)))
        ids.append(EOS if u < 0.15 else FIRST + int(u * len(CHARS)) % len(CHARS))
        if ids[-1] == EOS:
            break
    return np.array(ids, np.int32)


def member_key(seed: int, slot: Slot, attempt: int, member: int, tag: int = keyed.ROLLOUT) -> int:
    return keyed.stream(seed, slot.epoch, slot.index, attempt, member, tag)


class AnyOrderEngine:
    """Every step advances a random part of its rows by a token, so that rows finish in any order. Reports kept sets where asked."""

    reports_kept = True

    def __init__(self, slots: int = 8, seed: int = 0) -> None:
        self.slots, self.version, self.incarnation = slots, 0, 0
        self.seen: list[Request] = []
        self._rng = random.Random(seed)
        self._queue: list[Request] = []
        self._rows: dict[int, tuple[Request, I32, list[int]]] = {}

    @property
    def running(self) -> int:
        return len(self._rows)

    def submit(self, request: Request) -> None:
        self.seen.append(request)
        self._queue.append(request)

    def step(self) -> list[Completion]:
        while self._queue and len(self._rows) < self.slots:
            request = self._queue.pop(self._rng.randrange(len(self._queue)))
            self._rows[request.id] = (request, response_of(request.key, request.max_new_tokens), [])
        done = []
        for request, tokens, versions in self._rng.sample(list(self._rows.values()), k=self._rng.randint(0, len(self._rows))):
            versions.append(self.version)
            if len(versions) == len(tokens):
                del self._rows[request.id]
                done.append(self._finish(request, tokens, versions))
        return done

    def _finish(self, request: Request, tokens: I32, versions: list[int]) -> Completion:
        kept = None
        if request.sampling.cut:
            sets = [np.unique([t, EOS]).astype(np.int32) for t in tokens]
            kept = Kept(indptr=np.cumsum([0, *map(len, sets)]), ids=np.concatenate(sets))
        return Completion(
            id=request.id,
            tokens=tokens,
            logp=-np.arange(1, len(tokens) + 1, dtype=np.float32),
            versions=np.array(versions, np.int32),
            incarnation=self.incarnation,
            stop=StopReason.EOS if tokens[-1] == EOS else StopReason.LENGTH,
            started=1.0,
            finished=2.0,
            kept=kept,
        )

    def cancel(self, request_id: int) -> None:
        self._queue = [r for r in self._queue if r.id != request_id]
        self._rows.pop(request_id, None)

    def close(self) -> None:
        self._queue.clear()
        self._rows.clear()


class NearVerifier:
    """The verifier's interface in this process: every poll answers a random part of what is pending, in any order."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self._pending: dict[int, tuple[Prompt, str]] = {}

    @property
    def pending(self) -> int:
        return len(self._pending)

    def submit(self, key: int, prompt: Prompt, response: str) -> None:
        assert key not in self._pending
        self._pending[key] = (prompt, response)

    def poll(self, block: float = 0.0) -> list[tuple[int, Verdict]]:
        keys = self._rng.sample(list(self._pending), k=self._rng.randint(0, len(self._pending)))
        return [(key, judge(self, *self._pending.pop(key))) for key in keys]

    def cancel(self, keys: Set[int]) -> None:
        for key in keys:
            del self._pending[key]

    def close(self) -> None:
        self._pending.clear()

    def score(self, prompt: Prompt, response: str) -> Verdict:
        """Even lengths are correct, responses that begin with 9 raise, those with 8 time out."""
        if response.startswith("9"):
            raise RuntimeError(f"row {prompt.row} has a nine")
        if response.startswith("8"):
            return Verdict(score=0.0, outcome=Outcome.TIMEOUT)
        correct = len(response) % 2 == 0
        return Verdict(score=float(correct), outcome=Outcome.CORRECT if correct else Outcome.WRONG)


class Sums:
    """Row i is "i+i="; row 13 cannot be had, row 14 is too long."""

    name, eval_size = "sums", 40

    def __len__(self) -> int:
        return 100

    def prompt(self, row: int) -> Prompt:
        if row == 13:
            raise TrimtabError("row 13 cannot be had")
        text = "1+" * 200 if row == 14 else f"{row}+{row}="
        return Prompt(row=row, text=text, answer=str(2 * row), source="made up", data={})

    def eval_prompt(self, row: int) -> Prompt:
        text = "1+" * 200 if row == 7 else f"{row}-{row}="
        return Prompt(row=row, text=text, answer="0", source="made up", data={})
