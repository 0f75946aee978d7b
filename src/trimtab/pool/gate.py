"""The gate: may a worker be given a group now, and how many more? The plan, depth, and one rule that bounds the age.

==========  ======================================================================================================================
``lag``     inequality (I) of :mod:`trimtab.pool.admission`, by charge: the default, and a theorem
``areal``   totals against the version, for comparison
surplus     lockstep's: so many groups a batch, whatever becomes of them; (I) beside it where ``max_lag`` is given
==========  ======================================================================================================================
"""

from trimtab.pool.admission import Bounds, areal_capacity, surplus_groups
from trimtab.pool.book import Book
from trimtab.pool.ledger import SlotState
from trimtab.pool.options import PoolOptions
from trimtab.pool.plan import Plan
from trimtab.pool.results import Blocked, BlockedBy
from trimtab.records import StoppedByRule


class Gate:
    """Reads the book, changes nothing. ``calibration``: so many batches at lag 0 come first."""

    def __init__(self, options: PoolOptions, plan: Plan, calibration: int) -> None:
        self.plan, self._options, self._calibration = plan, options, calibration
        by_charge = None if options.admission == "areal" else options.max_lag
        self._open = Bounds(plan.batch_groups, by_charge, None if options.surplus else options.batches_ahead)
        self._calibrating = Bounds(plan.batch_groups, 0, 0)

    def calibrating(self, book: Book) -> bool:
        return _batches(book, self.plan) < self._calibration

    def bounds(self, book: Book) -> Bounds:
        """The limits now in force."""
        return self._calibrating if self.calibrating(book) else self._open

    def block(self, book: Book, worker: str, held: int, version: int) -> Blocked | None:
        """Why the worker gets no group, where it gets none."""
        ledger, bounds = book.ledger, self.bounds(book)
        if not book.in_line:
            if not self._wanted(book):
                return Blocked(BlockedBy.PLAN, f"all {self.plan.target} planned groups are admitted")
            if bounds.most is not None and ledger.outstanding >= bounds.most:
                return Blocked(BlockedBy.DEPTH, f"{ledger.outstanding} groups are outstanding, depth {bounds.depth} allows {bounds.most}")
        places = self.places(book, version)
        if places is not None and places <= 0:
            rule = f"totals allow none at version {version}" if self._areal(book) else "this batch has its surplus"
            return Blocked(BlockedBy.LAG, f"{self._accepted(book)} groups came and {ledger.count(SlotState.RUNNING)} are running: {rule}")
        return bounds.block(book.profile, worker, held, version + bool(book.training))

    def free(self, book: Book, held: int, version: int) -> int:
        """How many new groups a worker that holds ``held`` could be given now."""
        bounds, turn = self.bounds(book), version + bool(book.training)
        limits: list[int] = []
        if not self._options.surplus:
            limits = [self.plan.target - book.ledger.count(SlotState.TRAINED) - book.ledger.outstanding]
        if bounds.most is not None:
            limits.append(bounds.most - book.ledger.outstanding)
        rooms = (bounds.room(book.profile, held, turn), self.places(book, version))
        limits += [room - book.in_line for room in rooms if room is not None]
        return max(0, min(limits)) if self._wanted(book) else 0

    def places(self, book: Book, version: int) -> int | None:
        """Left by a rule that counts totals. None: there is none."""
        running = book.ledger.count(SlotState.RUNNING)
        if self._areal(book):
            assert self._options.max_lag is not None
            return areal_capacity(self._options.max_lag, version, self.plan.batch_groups, self._accepted(book), running)
        if self._options.surplus:
            turn = _batches(book, self.plan) + 1
            brought = surplus_groups(self.plan.batch_groups, self._options.surplus, turn, self._calibration)
            return brought - self._accepted(book) - running
        return None

    def check_open(self, book: Book, version: int) -> None:
        """StoppedByRule where AReaL's gate has closed for good: nothing runs, too little waits, and there are no places."""
        ledger, places = book.ledger, self.places(book, version)
        idle = not ledger.count(SlotState.RUNNING) and ledger.count(SlotState.WAITING) < self.plan.batch_groups
        if self._areal(book) and idle and places is not None and places <= 0:
            raise StoppedByRule(
                f"runtime.admission = 'areal': {_batches(book, self.plan)} batches were consumed but the version is {version}: each "
                "skipped batch has closed the gate by one, and it admits nothing more; use admission = 'lag'"
            )

    def _areal(self, book: Book) -> bool:
        return self._options.admission == "areal" and not self.calibrating(book)

    def _accepted(self, book: Book) -> int:
        """AReaL's: trained on or queued. Lockstep's: every arrival that was fit to wait, whatever became of it."""
        if self._options.surplus:
            return book.ledger.arrivals - book.unfit
        return book.ledger.count(SlotState.TRAINED) + book.ledger.count(SlotState.WAITING)

    def _wanted(self, book: Book) -> bool:
        """Does the plan want one more slot? A surplus overshoots it until the last batch is trained."""
        trained = book.ledger.count(SlotState.TRAINED)
        return trained < self.plan.target if self._options.surplus else self.plan.wants(trained, book.ledger.outstanding)


def _batches(book: Book, plan: Plan) -> int:
    return book.ledger.count(SlotState.TRAINED) // plan.batch_groups
