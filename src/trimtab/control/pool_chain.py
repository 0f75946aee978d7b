"""The pool's side of a chain: what its methods let go is noted here, so that none of them can do it unsaid."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.control.protocol import AcceptMethod, GroupStats, Notes, PoolView, Reject, Selection, SelectMethod
from trimtab.control.roster import ChainSide
from trimtab.records import Decision


@dataclass(slots=True)
class PoolChain(ChainSide):
    """The methods that act at accept and select. They belong to the pool: who may call it may call them."""

    def accept(self, group: GroupStats, notes: Notes) -> Reject | None:
        """The first rejection. ``notes`` counts it; ``pool/rejected`` is the share of the groups that came."""
        rejected: Reject | None = None
        accepts = self.acting(AcceptMethod)
        for m in accepts:
            rejected = m.accept(group)
            if rejected is not None:
                notes.count(Decision(method=m.name, point="accept", what="rejected", amount=1.0, why=rejected.why or rejected.reason))
                break
        if accepts:
            notes.metric("pool/rejected", float(rejected is not None))
        return rejected

    @property
    def selector(self) -> SelectMethod | None:
        return next(iter(self.acting(SelectMethod)), None)

    def select(self, pool: PoolView, want: int) -> Selection | None:
        """The selector's answer; the view's recorder is told of every group that it lets go."""
        assert self.selector is not None
        selection = self.selector.select(pool, want)
        if selection is None:
            return None
        for what, ids in (("rejected", selection.reject), ("requeued", selection.requeue)):
            if ids:
                said = Decision(method=self.selector.name, point="select", what=what, amount=float(len(ids)), why=selection.why)
                pool.recorder.note(said)
        return selection

    def formed(self, selection: Selection) -> None:
        """The last answer has become a batch."""
        assert self.selector is not None
        self.selector.formed(selection)
