"""Which waiting groups form the batch: the orders ``fifo`` and ``ready``, and selectors.

All obey the debts of :meth:`Bounds.owed`: pairs (v, n), the batch must take at least n groups charged v or less. The sets
"charged v or less" are nested, so m groups can pay all debts if and only if m >= max n and enough such groups wait.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.control.protocol import PoolView, Selection
from trimtab.pool.ledger import LiveSlot, SlotState

Debts = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The groups to take and those to let go; where ``take`` is empty, the entries that have to come first."""

    take: Sequence[LiveSlot] = ()
    late: Sequence[LiveSlot] = ()
    reject: Sequence[LiveSlot] = ()
    requeue: Sequence[LiveSlot] = ()
    expired: Sequence[LiveSlot] = ()


def fifo(live: Sequence[LiveSlot], want: int) -> Choice:
    """The ``want`` groups with the oldest charge, ties in order of admission; waits for every one of them.

    Earliest deadline first, which pays the debts whatever they are. Among workers that hold one version it is the order of
    admission.
    """
    charged = sorted((e for e in live if e.charge >= 0), key=lambda e: (e.charge, e.serial))[:want]
    late = [e for e in charged if e.state is SlotState.RUNNING]
    if len(charged) < want:
        return Choice(late=late + [e for e in live if e.state is SlotState.ADMITTED])
    return Choice(late=late) if late else Choice(charged)


def ready(live: Sequence[LiveSlot], waiting: Sequence[LiveSlot], want: int, debts: Debts) -> Choice:
    """The first ``want`` arrivals that together pay the debts; waits only for groups without which they cannot be paid.

    Takes an arrival unless the places left after it would be too few for what is then still owed.
    """
    late = _debtors(live, unpaid(debts, [e.charge for e in waiting]))
    if late or len(waiting) < want:
        return Choice(late=late or [e for e in live if e.state is not SlotState.WAITING])
    take: list[LiveSlot] = []
    for entry in waiting:
        left = unpaid(debts, [entry.charge])
        if len(take) < want and max((n for _, n in left), default=0) < want - len(take):
            take.append(entry)
            debts = left
    return Choice(take)


def selected(
    selection: Selection, view: PoolView, waiting: Mapping[int, LiveSlot], live: Iterable[LiveSlot], want: int, debts: Debts
) -> Choice:
    """A selector's choice. What it leaves unpaid expires: the fewest waiting groups that pay it, oldest charge first.

    ``waiting``: the entries behind the view's ids. Looks at single entries only where they leave or are late.
    Raises ``ValueError`` for a selection that is none: not ``want`` groups (or none), or groups that do not wait, or named twice.
    """
    ids = (*selection.take, *selection.reject, *selection.requeue)
    named = np.isin(view.ids, ids)
    if len(selection.take) not in (0, want) or np.count_nonzero(named) != len(ids):
        raise ValueError(
            f"a selection takes {want} different waiting groups and lets others go; got {selection} from {sorted(view.ids.tolist())}"
        )
    reject, requeue = [waiting[i] for i in selection.reject], [waiting[i] for i in selection.requeue]
    if not selection.take:
        return Choice(reject=reject, requeue=requeue)
    charge = view.oldest  # of a group that has arrived
    debts = unpaid(debts, charge[named])
    late = _debtors(live, unpaid(debts, charge[~named])) if debts else []
    if late:
        return Choice(late=late)
    expired = view.ids[~named][np.lexsort((view.ids[~named], charge[~named]))[: max(n for _, n in debts)]] if debts else ()
    return Choice([waiting[i] for i in selection.take], (), reject, requeue, [waiting[int(i)] for i in expired])


def unpaid(debts: Debts, charges: Collection[int] | np.ndarray[tuple[int], np.dtype[np.int64]]) -> Debts:
    """What is still owed after groups of the given charges."""
    paid = np.asarray(charges)
    rest = ((v, n - int(np.count_nonzero(paid <= v))) for v, n in debts)
    return [(v, n) for v, n in rest if n > 0]


def _debtors(live: Iterable[LiveSlot], unpaid: Debts) -> list[LiveSlot]:
    """The running groups that could pay what the waiting ones cannot."""
    newest = max((v for v, _ in unpaid), default=-1)
    return [e for e in live if e.state is SlotState.RUNNING and e.charge <= newest]
