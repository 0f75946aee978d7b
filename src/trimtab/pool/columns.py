"""The waiting groups as columns, so that a selector looks at ten thousand of them without a Python object each.

Rows are appended in order of arrival and never change place in it. A row that leaves is marked; the next view closes the gaps.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from trimtab.control.protocol import PoolView, Recorder
from trimtab.pool.ledger import LiveSlot
from trimtab.pool.measure import MeasuredGroup

Column = npt.NDArray[np.generic]

_GROUP: Mapping[str, type[np.generic]] = {
    "ids": np.int64,
    "entered": np.int64,
    "mean_version": np.float64,
    "finished": np.float64,
    "first": np.float64,
    "members": np.int64,
    "oldest": np.int64,
    "order": np.int64,
    "forgetting": np.float64,
    "interrupted": np.bool_,
    "score": np.float64,
    "accuracy": np.float64,
    "length": np.float64,
}
_MEMBER: Mapping[str, type[np.generic]] = {
    "order_M": np.int64,
    "finished_M": np.int64,
    "generation_M": np.float64,
    "forgetting_M": np.float64,
}


class Table:
    """Columns of equal length that grow by doubling."""

    def __init__(self, columns: Mapping[str, type[np.generic]]) -> None:
        self.n = 0
        self._data: dict[str, Column] = {name: np.zeros(64, kind) for name, kind in columns.items()}

    def __getitem__(self, name: str) -> Column:
        return self._data[name][: self.n]

    def append(self, rows: int, values: Mapping[str, npt.ArrayLike]) -> None:
        end = self.n + rows
        for name, column in self._data.items():
            if end > len(column):
                column = self._data[name] = np.concatenate([column, np.zeros(max(rows, len(column)), column.dtype)])
            column[self.n : end] = values[name]
        self.n = end

    def keep(self, rows: npt.NDArray[np.bool_]) -> None:
        kept = int(np.count_nonzero(rows))
        for column in self._data.values():
            column[:kept] = column[: self.n][rows]
        self.n = kept


class WaitingColumns:
    """One row a waiting group, and one a member of it that was interrupted."""

    def __init__(self) -> None:
        self._groups, self._members = Table(_GROUP), Table(_MEMBER)
        self._gone: list[int] = []  # arrivals that have left since the last view

    def add(self, entry: LiveSlot, group: MeasuredGroup) -> None:
        """A group has arrived; the entry's arrival is later than any before."""
        own = {"ids": entry.serial, "entered": entry.entered, "order": entry.arrival, "interrupted": len(group.generation_M) > 0}
        self._groups.append(1, {name: own[name] if name in own else getattr(group, name) for name in _GROUP})
        rows = len(group.generation_M)
        self._members.append(rows, {name: entry.arrival if name == "order_M" else getattr(group, name) for name in _MEMBER})

    def remove(self, entry: LiveSlot) -> None:
        self._gone.append(entry.arrival)

    def rescored(self, entry: LiveSlot, group: MeasuredGroup) -> None:
        """The group's forgetting scores are known now."""
        row = int(np.searchsorted(self._groups["order"], entry.arrival))
        self._groups["forgetting"][row] = group.forgetting
        first, last = np.searchsorted(self._members["order_M"], [entry.arrival, entry.arrival + 1])
        self._members["forgetting_M"][first:last] = group.forgetting_M

    def unscored(self) -> list[int]:
        """Arrivals of the groups with an interrupted member of unknown forgetting."""
        self._close_gaps()
        unknown = np.isnan(self._members["forgetting_M"].astype(np.float64))
        return [int(arrival) for arrival in np.unique(self._members["order_M"][unknown])]

    def view(self, now: int, batch_groups: int, recorder: Recorder) -> PoolView:
        """What a selector sees; its columns are copies."""
        self._close_gaps()
        groups, members = self._groups, self._members
        columns = {name: groups[name].copy() for name in _GROUP} | {name: members[name].copy() for name in _MEMBER if name != "order_M"}
        row_M = np.searchsorted(groups["order"], members["order_M"])
        return PoolView(**columns, row_M=row_M, now=now, batch_groups=batch_groups, recorder=recorder)  # type: ignore[arg-type]  # dtypes as in the tables above

    def _close_gaps(self) -> None:
        if self._gone:
            gone = np.array(self._gone)
            self._groups.keep(~np.isin(self._groups["order"], gone))
            self._members.keep(~np.isin(self._members["order_M"], gone))
            self._gone = []
