"""The book: the ledger, and beside it everything that has to change in step with it.

One method a transition. Each moves the slot in the ledger, its charge in the profile, its place in the line and its group among
the waiting ones, so that no caller can do one without the others.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict

from trimtab.control.protocol import Notes
from trimtab.pool.admission import Profile
from trimtab.pool.bias import Bias, BiasState
from trimtab.pool.columns import WaitingColumns
from trimtab.pool.ledger import Ledger, LedgerState, LiveSlot, SlotState
from trimtab.pool.measure import MeasuredGroup, measure
from trimtab.pool.results import FateTally, LetGo
from trimtab.records import Group, Slot, TrimtabError


class BookState(BaseModel):
    """Everything but the groups."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ledger: LedgerState
    tallies: dict[str, FateTally]
    set_aside: list[int]
    hopeless: list[int] = []
    fruitless: int
    refused: int
    unfit: int = 0
    gone: list[LetGo] = []
    noted: Notes = Notes()
    bias: BiasState = BiasState()


class Book:
    """``profile`` holds the charges of running and waiting slots, without the batch in training."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.profile = Profile()
        self.training: tuple[Slot, ...] = ()
        self.tallies: dict[str, FateTally] = {}
        self.set_aside: set[int] = set()  # rows whose slot failed for good
        self.hopeless: set[int] = set()  # those among them that are never drawn again
        self.fruitless = 0  # drops and failures since the last consumed batch
        self.refused = 0  # deliveries that nobody waited for
        self.unfit = 0  # groups dropped on arrival
        self.gone: list[LetGo] = []  # let go by a selector since the last batch
        self.noted = Notes()  # what is to be told with the next batch
        self.columns = WaitingColumns()  # the waiting groups, without the batch in training
        self.bias = Bias()
        self._waiting: dict[Slot, MeasuredGroup] = {}  # the batch in training included
        self._by_serial: dict[int, LiveSlot] = {}  # the rows of the columns
        self._line: list[tuple[int, Slot]] = []  # a heap: slots to be given out again, in order of first admission

    # ------------------------------------------------------------------------------------------------------------- reading

    def __getitem__(self, slot: Slot) -> MeasuredGroup:
        return self._waiting[slot]

    def waiting(self) -> list[LiveSlot]:
        """The waiting groups, in order of arrival."""
        return sorted(self._by_serial.values(), key=lambda e: e.arrival)

    @property
    def by_serial(self) -> Mapping[int, LiveSlot]:
        """The waiting groups by the id that selectors know them by."""
        return self._by_serial

    def unscored(self) -> list[Group]:
        """Waiting groups with an interrupted member of unknown forgetting, in order of arrival."""
        arrivals = set(self.columns.unscored())
        return [self._waiting[e.slot].group for e in self.waiting() if e.arrival in arrivals] if arrivals else []

    @property
    def in_line(self) -> int:
        """Slots to be given out again."""
        return len(self._line)

    # --------------------------------------------------------------------------------------------------------- transitions

    def next_in_line(self) -> Slot:
        return heapq.heappop(self._line)[1]

    def run(self, slot: Slot, worker: str, held: int, now_s: float) -> LiveSlot:
        self.profile.add(held)
        return self.ledger.run(slot, worker, held, now_s)

    def arrive(self, entry: LiveSlot, group: MeasuredGroup, version: int) -> None:
        """The charge becomes the version of the oldest token, which is no older."""
        held = entry.charge
        self.ledger.arrive(entry.slot, group.oldest, version)
        self.profile.remove(held)
        self.profile.add(group.oldest)
        self._waiting[entry.slot] = group
        self._show(entry, group)

    def rescored(self, group: Group) -> None:
        """A waiting group again, its forgetting scores filled in; nothing happens where it has left meanwhile."""
        entry = self.ledger.get(group.slot)
        if entry is not None and entry.serial in self._by_serial and entry.attempt == group.attempt:
            measured = self._waiting[group.slot] = measure(group)
            self.columns.rescored(entry, measured)

    def give_back(self, entry: LiveSlot) -> None:
        """Its worker is gone: in line again, same attempt."""
        self._leave(entry)
        self._line_up(self.ledger.give_back(entry.slot))

    def retry(self, entry: LiveSlot) -> None:
        """Its attempt failed: in line again, next attempt."""
        self._leave(entry)
        self._line_up(self.ledger.retry(entry.slot, failed=True))

    def requeue(self, entry: LiveSlot, reason: str) -> LetGo:
        """A selector wants its prompt again: next attempt, not a failed one."""
        self._leave(entry)
        self._line_up(self.ledger.retry(entry.slot, failed=False))
        return self._let_go(entry.slot, reason, requeued=True)

    def drop(self, entry: LiveSlot, reason: str) -> LetGo:
        self._leave(entry)
        self.ledger.drop(entry.slot, reason)
        self.fruitless += 1
        return self._let_go(entry.slot, reason, requeued=False)

    def fail(self, entry: LiveSlot, reason: str) -> None:
        self._leave(entry)
        self.ledger.fail(entry.slot, reason)
        self.fruitless += 1

    def form(self, batch: Iterable[LiveSlot]) -> None:
        """The batch goes into training: it leaves the profile, its slots stay outstanding."""
        entries = list(batch)
        for entry in entries:
            self._leave(entry)
        self.training = tuple(e.slot for e in entries)
        self.gone, self.noted = [], Notes()

    def train(self) -> None:
        """The batch in training is consumed."""
        for slot in self.training:
            self.ledger.train(slot)
            self._tally("trained", self._waiting.pop(slot))
        self.training = ()
        self.fruitless = 0

    def _show(self, entry: LiveSlot, group: MeasuredGroup) -> None:
        self.columns.add(entry, group)
        self._by_serial[entry.serial] = entry

    def _leave(self, entry: LiveSlot) -> None:
        if entry.charge >= 0:
            self.profile.remove(entry.charge)
        if entry.state is SlotState.WAITING:
            self.columns.remove(entry)
            del self._by_serial[entry.serial]

    def _line_up(self, entry: LiveSlot) -> None:
        heapq.heappush(self._line, (entry.serial, entry.slot))

    def _let_go(self, slot: Slot, reason: str, *, requeued: bool) -> LetGo:
        group = self._waiting.pop(slot)
        self._tally(reason, group)
        return LetGo(slot=slot, reason=reason, score=group.score, accuracy=group.accuracy, length=group.length, requeued=requeued)

    def _tally(self, fate: str, group: MeasuredGroup) -> None:
        self.tallies.setdefault(fate, FateTally()).add(length=group.length, score=group.score, accuracy=group.accuracy)

    # ---------------------------------------------------------------------------------------------------------- checkpoint

    def groups(self) -> Iterator[Group]:
        """The groups that go with the state: all that wait, those in training included, in order of admission."""
        return (self._waiting[e.slot].group for e in self.ledger.live(SlotState.WAITING))

    def state(self) -> BookState:
        """A batch in training is saved as waiting, a running slot as first in line."""
        return BookState(
            ledger=self.ledger.state(),
            tallies=self.tallies,
            set_aside=sorted(self.set_aside),
            hopeless=sorted(self.hopeless),
            fruitless=self.fruitless,
            refused=self.refused,
            unfit=self.unfit,
            gone=self.gone,
            noted=self.noted,
            bias=self.bias.state(),
        )

    @classmethod
    def restored(cls, saved: BookState, groups: Iterable[Group]) -> Self:
        """The book of a checkpoint: its state and the groups saved with it."""
        book = cls()
        book.ledger.load_state_dict(saved.ledger)
        book.tallies, book.set_aside = dict(saved.tallies), set(saved.set_aside)
        book.hopeless = set(saved.hopeless)
        book.fruitless, book.refused, book.unfit = saved.fruitless, saved.refused, saved.unfit
        book.gone, book.noted, book.bias = list(saved.gone), saved.noted, Bias(saved.bias)
        book._waiting = {g.slot: measure(g) for g in groups}
        named = {e.slot for e in book.ledger.live(SlotState.WAITING)}
        if named != book._waiting.keys():
            raise TrimtabError(f"the checkpoint has {len(book._waiting)} groups, its ledger names {len(named)}; use an older checkpoint")
        for entry in book.ledger.live():
            if entry.state is SlotState.ADMITTED:
                book._line_up(entry)
            else:
                book.profile.add(entry.charge)
        for entry in sorted(book.ledger.live(SlotState.WAITING), key=lambda e: e.arrival):
            book._show(entry, book._waiting[entry.slot])
        return book
