"""The ledger: every admitted slot reaches exactly one terminal state.

    admitted ──▶ running ──▶ waiting ──▶ trained
       ▲            │  │        │ └────▶ dropped(reason)
       │            │  └────────┼──────▶ failed(reason)
       └────────────┴───────────┘   retry (attempt + 1) or return of a lost worker's slot (same attempt)

*admitted*: in line for a worker. *running*: with a worker. *waiting*: in the pool, the batch in training included.
The learner *trains* on a slot when it consumes its batch, whether the step was applied or skipped.

Checked on every transition: admitted = trained + dropped + failed + outstanding. Any other transition raises at once.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from pydantic import BaseModel, ConfigDict

from trimtab.records import Json, Slot


class SlotState(StrEnum):
    """Where a slot is in its life."""

    ADMITTED = "admitted"
    RUNNING = "running"
    WAITING = "waiting"
    TRAINED = "trained"
    DROPPED = "dropped"
    FAILED = "failed"


LIVE = (SlotState.ADMITTED, SlotState.RUNNING, SlotState.WAITING)
_LEGAL = {
    SlotState.ADMITTED: {SlotState.RUNNING},
    SlotState.RUNNING: {SlotState.WAITING, SlotState.ADMITTED, SlotState.FAILED},
    SlotState.WAITING: {SlotState.TRAINED, SlotState.DROPPED, SlotState.ADMITTED},
}
# One letter a slot, in order of index: what became of it ("." was never admitted, "o" is outstanding).
_UNSEEN, _OUT = ord("."), ord("o")
_LETTER = {SlotState.TRAINED: ord("t"), SlotState.DROPPED: ord("d"), SlotState.FAILED: ord("f")}


class IllegalTransition(RuntimeError):
    """The pool's caller asked for a step that the life of a slot does not have."""


@dataclass(slots=True)
class LiveSlot:
    """An outstanding slot. ``charge`` is -1 while no worker has it; ``serial`` counts admissions, ``arrival`` deliveries."""

    slot: Slot
    prompt: int
    serial: int
    attempt: int = 0
    failures: int = 0
    state: SlotState = SlotState.ADMITTED
    charge: int = -1
    worker: str = ""
    since_s: float = 0.0
    entered: int = -1
    arrival: int = -1


class LedgerState(BaseModel):
    """``fates``: one run-length coded string an epoch, e.g. ``64t1d3t8o``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fates: dict[str, str]
    live: list[LiveSlot]
    reasons: dict[str, dict[str, int]]
    arrivals: int


class Ledger:
    """The states of all slots; knows nothing of versions' meaning, workers' health or tensors."""

    def __init__(self) -> None:
        self._live: dict[Slot, LiveSlot] = {}
        self._fates: dict[int, bytearray] = {}
        self._count = dict.fromkeys(SlotState, 0)
        self._admitted = 0
        self._arrivals = 0
        self.reasons: dict[SlotState, Counter[str]] = {SlotState.DROPPED: Counter(), SlotState.FAILED: Counter()}

    # ------------------------------------------------------------------------------------------------------------- reading

    def __getitem__(self, slot: Slot) -> LiveSlot:
        if slot not in self._live:
            raise IllegalTransition(f"slot {slot} is not outstanding")
        return self._live[slot]

    def get(self, slot: Slot) -> LiveSlot | None:
        """The entry of an outstanding slot."""
        return self._live.get(slot)

    def live(self, *states: SlotState) -> Iterator[LiveSlot]:
        """Outstanding entries in the given states (all, where none is given), in order of admission."""
        return (e for e in self._live.values() if not states or e.state in states)

    def count(self, state: SlotState) -> int:
        """Slots now in ``state``."""
        return self._count[state]

    @property
    def admitted(self) -> int:
        """Slots ever admitted."""
        return self._admitted

    @property
    def arrivals(self) -> int:
        """Groups ever delivered; a requeued slot's, once an attempt."""
        return self._arrivals

    @property
    def outstanding(self) -> int:
        """Slots admitted and not terminal."""
        return len(self._live)

    def causes(self) -> str:
        """Why slots were dropped or failed, the most frequent reasons first: ``dropped: zero variance (12), failed: deadline (1)``."""
        known = Counter({f"{state}: {reason}": n for state, counter in self.reasons.items() for reason, n in counter.items()})
        return ", ".join(f"{cause} ({n})" for cause, n in known.most_common(3))

    def trained(self) -> list[Slot]:
        """Every slot trained on, in order. A slot occurs once: a second training would be an illegal transition."""
        letter = _LETTER[SlotState.TRAINED]
        return [Slot(epoch, i) for epoch in sorted(self._fates) for i, fate in enumerate(self._fates[epoch]) if fate == letter]

    # --------------------------------------------------------------------------------------------------------- transitions

    def admit(self, slot: Slot, prompt: int) -> LiveSlot:
        """A new slot joins the line."""
        fates = self._fates.setdefault(slot.epoch, bytearray())
        if len(fates) <= slot.index:
            fates.extend([_UNSEEN] * (slot.index + 1 - len(fates)))
        if fates[slot.index] != _UNSEEN:
            raise IllegalTransition(f"slot {slot} was admitted before")
        fates[slot.index] = _OUT
        entry = LiveSlot(slot, prompt, serial=self._admitted)
        self._live[slot] = entry
        self._admitted += 1
        self._count[SlotState.ADMITTED] += 1
        self._check()
        return entry

    def run(self, slot: Slot, worker: str, charge: int, now_s: float) -> LiveSlot:
        """A worker that holds version ``charge`` takes the slot."""
        entry = self._move(slot, SlotState.RUNNING)
        entry.worker, entry.charge, entry.since_s = worker, charge, now_s
        return entry

    def arrive(self, slot: Slot, oldest: int, entered: int) -> LiveSlot:
        """Its group is here: its oldest token has version ``oldest``, the learner stands at ``entered``."""
        if oldest < self[slot].charge:
            raise IllegalTransition(f"slot {slot} was charged with version {self[slot].charge} but its oldest token has version {oldest}")
        entry = self._move(slot, SlotState.WAITING)
        entry.charge, entry.entered, entry.arrival = oldest, entered, self._arrivals
        self._arrivals += 1
        return entry

    def retry(self, slot: Slot, *, failed: bool) -> LiveSlot:
        """Retry: back in line with ``attempt + 1``. ``failed`` counts against ``max_attempts``; a method's requeue does not."""
        entry = self.give_back(slot)
        entry.attempt += 1
        entry.failures += failed
        return entry

    def give_back(self, slot: Slot) -> LiveSlot:
        """Back in line as it was: same attempt. It has no tokens any more, hence no charge."""
        self._move(slot, SlotState.ADMITTED)
        entry = self._live[slot] = _in_line(self._live[slot])
        return entry

    def train(self, slot: Slot) -> None:
        """The learner has consumed its batch."""
        self._end(slot, SlotState.TRAINED)

    def drop(self, slot: Slot, reason: str) -> None:
        """A method let the group go."""
        self._end(slot, SlotState.DROPPED, reason)

    def fail(self, slot: Slot, reason: str) -> None:
        """No group came of it."""
        self._end(slot, SlotState.FAILED, reason)

    def _move(self, slot: Slot, state: SlotState) -> LiveSlot:
        entry = self[slot]
        if state not in _LEGAL[entry.state]:
            raise IllegalTransition(f"slot {slot} is {entry.state}, it cannot become {state}")
        self._count[entry.state] -= 1
        self._count[state] += 1
        entry.state = state
        if state not in LIVE:
            del self._live[slot]
            self._fates[slot.epoch][slot.index] = _LETTER[state]
        self._check()
        return entry

    def _end(self, slot: Slot, state: SlotState, reason: str = "") -> None:
        self._move(slot, state)
        if reason:
            self.reasons[state][reason] += 1

    def _check(self) -> None:
        terminal = sum(self._count[s] for s in _LETTER)
        live = sum(self._count[s] for s in LIVE)
        if not live == len(self._live) == self._admitted - terminal:
            raise RuntimeError(f"ledger broken: {self._admitted} admitted, {terminal} terminal, {live} live, {len(self._live)} outstanding")

    # ---------------------------------------------------------------------------------------------------------- checkpoint

    def state(self) -> LedgerState:
        """A running slot is saved as in line (same attempt): no worker survives a restart."""
        return LedgerState(
            fates={str(epoch): _pack(fates) for epoch, fates in self._fates.items()},
            live=[e if e.state is SlotState.WAITING else _in_line(e) for e in self.live()],
            reasons={str(state): dict(counter) for state, counter in self.reasons.items()},
            arrivals=self._arrivals,
        )

    def state_dict(self) -> dict[str, Json]:
        """:meth:`state` in plain JSON."""
        return self.state().model_dump(mode="json")

    def load_state_dict(self, state: Json | LedgerState) -> None:
        """Replace everything by a checkpoint's."""
        saved = LedgerState.model_validate(state)
        self._live = {e.slot: e for e in saved.live}
        self._fates = {int(epoch): _unpack(runs) for epoch, runs in saved.fates.items()}
        self.reasons = {s: Counter(saved.reasons[s]) for s in self.reasons}
        self._arrivals = saved.arrivals
        self._admitted = sum(len(fates) - fates.count(_UNSEEN) for fates in self._fates.values())
        for s, letter in _LETTER.items():
            self._count[s] = sum(fates.count(letter) for fates in self._fates.values())
        for s in LIVE:
            self._count[s] = sum(e.state is s for e in saved.live)
        self._check()


def _in_line(e: LiveSlot) -> LiveSlot:
    return LiveSlot(e.slot, e.prompt, e.serial, e.attempt, e.failures)


def _pack(fates: bytearray) -> str:
    """``b"tttd"`` -> ``"3t1d"``."""
    letters = np.frombuffer(bytes(fates), dtype=np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(letters)) + 1, [len(letters)]])
    return "".join(f"{b - a}{chr(letters[a])}" for a, b in itertools.pairwise(starts))


def _unpack(runs: str) -> bytearray:
    """``"3t1d"`` -> ``b"tttd"``."""
    fates, length = bytearray(), 0
    for char in runs:
        if char.isdigit():
            length = 10 * length + int(char)
        else:
            fates += char.encode() * length
            length = 0
    return fates
