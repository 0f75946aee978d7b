"""AReaL's gate, for comparison: ``runtime.admission = "areal"``."""

from __future__ import annotations

from trimtab.pool.book import Book
from trimtab.pool.ledger import SlotState
from trimtab.pool.options import LagOptions
from trimtab.pool.rules import Rule, batches
from trimtab.records import StoppedByRule, TrimtabError


def capacity(eta: int, version: int, batch_groups: int, accepted: int, running: int) -> int:
    """AReaL's gate (arXiv 2505.24298): how many more groups may be admitted.

    ``accepted``: trained on or queued. A rejected group leaves it; a skipped batch stays in it, and the version does not rise.
    """
    return (eta + version + 1) * batch_groups - (accepted + running)


class ArealGate(Rule):
    """Counts totals: B (max_lag + version + 1) groups may have been admitted and not rejected.

    It knows neither which version a worker holds nor that a skipped batch leaves the version as it is, so that max_lag is a bound only
    in ``fifo`` order under fresh workers, and every skipped batch closes it by a batch more, for good.
    """

    @classmethod
    def check(cls, options: LagOptions) -> None:
        if options.max_lag is None:
            raise TrimtabError.field("runtime.max_lag", "none", "admission = 'areal' counts up to it; give a number, or admission = 'lag'")

    def came(self, book: Book) -> int:
        """Trained on or queued."""
        return book.ledger.count(SlotState.TRAINED) + book.ledger.count(SlotState.WAITING)

    def places(self, book: Book, version: int) -> int:
        assert self.options.max_lag is not None
        return capacity(self.options.max_lag, version, self.plan.batch_groups, self.came(book), book.ledger.count(SlotState.RUNNING))

    def why(self, version: int) -> str:
        return f"totals allow none at version {version}"

    def check_open(self, book: Book, version: int) -> None:
        ledger = book.ledger
        idle = not ledger.count(SlotState.RUNNING) and ledger.count(SlotState.WAITING) < self.plan.batch_groups
        if idle and self.places(book, version) <= 0:
            raise StoppedByRule(
                f"runtime.admission = 'areal': {batches(book, self.plan)} batches were consumed but the version is {version}: each "
                "skipped batch has closed the gate by one, and it admits nothing more; use admission = 'lag'"
            )
