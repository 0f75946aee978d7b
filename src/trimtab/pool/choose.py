"""Which waiting groups form the batch: the orders ``fifo`` and ``ready``, and selectors.

All obey the debts of :meth:`Bounds.owed`: pairs (v, n), the batch must take at least n groups charged v or less. The sets
"charged v or less" are nested, so m groups can pay all debts if and only if m >= max n and enough such groups wait.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from trimtab.methods.protocol import PoolView, Selection
from trimtab.pool.ledger import Entry, SlotState

Debts = Sequence[tuple[int, int]]


class Selects(Protocol):
    """Acts at the select point."""

    def select(self, pool: PoolView, want: int) -> Selection | None: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """The groups to take and those to let go; where ``take`` is empty, the entries that have to come first."""

    take: Sequence[Entry] = ()
    late: Sequence[Entry] = ()
    reject: Sequence[Entry] = ()
    requeue: Sequence[Entry] = ()
    expired: Sequence[Entry] = ()


def fifo(live: Sequence[Entry], want: int) -> Choice:
    """The ``want`` groups with the oldest charge, ties in order of admission; waits for every one of them.

    Earliest deadline first, which pays the debts whatever they are. Among workers that hold one version it is the order of
    admission.
    """
    charged = sorted((e for e in live if e.charge >= 0), key=lambda e: (e.charge, e.serial))[:want]
    late = [e for e in charged if e.state is SlotState.RUNNING]
    if len(charged) < want:
        return Choice(late=late + [e for e in live if e.state is SlotState.ADMITTED])
    return Choice(late=late) if late else Choice(charged)


def ready(live: Sequence[Entry], waiting: Sequence[Entry], want: int, debts: Debts) -> Choice:
    """The first ``want`` arrivals that together pay the debts; waits only for groups without which they cannot be paid.

    Takes an arrival unless the places left after it would be too few for what is then still owed.
    """
    late = _debtors(live, unpaid(debts, waiting))
    if late or len(waiting) < want:
        return Choice(late=late or [e for e in live if e.state is not SlotState.WAITING])
    take: list[Entry] = []
    for entry in waiting:
        left = unpaid(debts, [entry])
        if len(take) < want and max((n for _, n in left), default=0) < want - len(take):
            take.append(entry)
            debts = left
    return Choice(take)


def selected(selection: Selection, live: Sequence[Entry], waiting: Sequence[Entry], want: int, debts: Debts) -> Choice:
    """A selector's choice. What it leaves unpaid expires: the fewest waiting groups that pay it, oldest charge first.

    Raises ``ValueError`` for a selection that is none: not ``want`` groups, or groups that do not wait, or named twice.
    """
    by_id = {e.serial: e for e in waiting}
    ids = (*selection.take, *selection.reject, *selection.requeue)
    if len(selection.take) != want or len(set(ids)) != len(ids) or not by_id.keys() >= set(ids):
        raise ValueError(f"a selection takes {want} different waiting groups and lets others go; got {selection} from {sorted(by_id)}")
    gone = set(ids)
    rest = [e for e in waiting if e.serial not in gone]
    debts = unpaid(debts, [by_id[i] for i in ids])
    late = _debtors(live, unpaid(debts, rest))
    if late:
        return Choice(late=late)
    oldest_first = sorted(rest, key=lambda e: (e.charge, e.serial))
    return Choice(
        take=[by_id[i] for i in selection.take],
        reject=[by_id[i] for i in selection.reject],
        requeue=[by_id[i] for i in selection.requeue],
        expired=oldest_first[: max((n for _, n in debts), default=0)],
    )


def unpaid(debts: Debts, groups: Collection[Entry]) -> Debts:
    """What is still owed after the given groups."""
    rest = ((v, n - sum(e.charge <= v for e in groups)) for v, n in debts)
    return [(v, n) for v, n in rest if n > 0]


def _debtors(live: Sequence[Entry], unpaid: Debts) -> list[Entry]:
    """The running groups that could pay what the waiting ones cannot."""
    newest = max((v for v, _ in unpaid), default=-1)
    return [e for e in live if e.state is SlotState.RUNNING and e.charge <= newest]
