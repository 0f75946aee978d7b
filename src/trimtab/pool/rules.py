"""Rules of admission that count totals, in the place of inequality (I) of :mod:`trimtab.pool.admission`, which goes by charge.

``Surplus`` is lockstep's. ``runtime.admission`` names another one, of the entry points ``trimtab.admissions`` (:mod:`trimtab.plugins`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from trimtab.plugins import named
from trimtab.pool.admission import surplus_groups
from trimtab.pool.book import Book
from trimtab.pool.ledger import SlotState
from trimtab.pool.options import ADMISSIONS, LAG, Admission, PoolOptions
from trimtab.pool.plan import Plan


class Rule(Admission, ABC):
    """How many more groups may be admitted now. Reads the book, changes nothing. ``calibration``: so many batches at lag 0 come first."""

    def __init__(self, options: PoolOptions, plan: Plan, calibration: int) -> None:
        self.options, self.plan, self.calibration = options, plan, calibration

    @abstractmethod
    def came(self, book: Book) -> int:
        """Groups that have come and count."""

    @abstractmethod
    def places(self, book: Book, version: int) -> int:
        """How many more; 0 or below: none."""

    @abstractmethod
    def why(self, version: int) -> str:
        """What a worker is told that gets none."""

    def check_open(self, book: Book, version: int) -> None:
        """StoppedByRule where nothing runs, too little waits, and there will be no places any more."""


def rule_named(name: str) -> type[Rule]:
    """What ``runtime.admission`` names, other than ``lag``."""
    return named(ADMISSIONS, "runtime.admission", name, Rule, builtin=(LAG,))  # type: ignore[type-abstract]


class Surplus(Rule):
    """Lockstep's: every batch brings so many groups that are fit to wait, whatever becomes of them."""

    def came(self, book: Book) -> int:
        return book.ledger.arrivals - book.unfit

    def places(self, book: Book, version: int) -> int:
        turn = batches(book, self.plan) + 1
        brought = surplus_groups(self.plan.batch_groups, self.options.surplus, turn, self.calibration)
        return brought - self.came(book) - book.ledger.count(SlotState.RUNNING)

    def why(self, version: int) -> str:
        return "this batch has its surplus"


def batches(book: Book, plan: Plan) -> int:
    """Batches consumed."""
    return book.ledger.count(SlotState.TRAINED) // plan.batch_groups
