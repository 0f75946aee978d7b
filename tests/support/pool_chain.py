"""The pool's side of a chain made of whatever has an ``accept`` or a ``select``, so that a test need not write a whole method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trimtab.control.pool_chain import PoolChain
from trimtab.control.protocol import AcceptMethod, GroupStats, MethodOptions, PoolView, Reject, Selection, SelectMethod
from trimtab.control.registry import ChainMember


class Accepting(AcceptMethod):
    def __init__(self, inner: Any) -> None:
        super().__init__(MethodOptions())
        self.name, self._inner = type(inner).__name__.lower(), inner  # type: ignore[misc]

    def accept(self, group: GroupStats) -> Reject | None:
        verdict: Reject | None = self._inner.accept(group)
        return verdict


class Selecting(SelectMethod):
    def __init__(self, inner: Any) -> None:
        super().__init__(MethodOptions())
        self.name, self._inner = type(inner).__name__.lower(), inner  # type: ignore[misc]

    def select(self, pool: PoolView, want: int) -> Selection | None:
        selection: Selection | None = self._inner.select(pool, want)
        return selection

    def formed(self, selection: Selection) -> None:
        self._inner.formed(selection)


def pool_chain(accept: Sequence[Any] = (), select: Any = None) -> PoolChain:
    accepts = [m if isinstance(m, AcceptMethod) else Accepting(m) for m in accept]
    selects = [] if select is None else [select if isinstance(select, SelectMethod) else Selecting(select)]
    return PoolChain([ChainMember(m, "") for m in (*accepts, *selects)])
