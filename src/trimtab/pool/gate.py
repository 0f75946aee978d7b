"""The gate: may a worker be given a group now, and how many more? The plan, depth, and one rule that bounds the age.

==========  ======================================================================================================================
``lag``     inequality (I) of :mod:`trimtab.pool.admission`, by charge: the default, and a theorem
a plug-in   a rule of :mod:`trimtab.pool.rules` that counts totals, in its place
surplus     lockstep's: so many groups a batch, whatever becomes of them; (I) beside it where ``max_lag`` is given
==========  ======================================================================================================================
"""

from trimtab.pool.admission import Bounds
from trimtab.pool.book import Book
from trimtab.pool.ledger import SlotState
from trimtab.pool.options import LAG, PoolOptions
from trimtab.pool.plan import Plan
from trimtab.pool.results import Blocked, BlockedBy
from trimtab.pool.rules import Rule, Surplus, batches, rule_named


class Gate:
    """Reads the book, changes nothing. ``calibration``: so many batches at lag 0 come first."""

    def __init__(self, options: PoolOptions, plan: Plan, calibration: int) -> None:
        self.plan, self._options, self._calibration = plan, options, calibration
        self._surplus = Surplus(options, plan, calibration) if options.surplus else None
        self._admission = None if options.admission == LAG else rule_named(options.admission)(options, plan, calibration)
        by_charge = options.max_lag if self._admission is None else None
        self._open = Bounds(plan.batch_groups, by_charge, None if options.surplus else options.batches_ahead)
        self._calibrating = Bounds(plan.batch_groups, 0, 0)

    def calibrating(self, book: Book) -> bool:
        return batches(book, self.plan) < self._calibration

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
        rule = self._rule(book)
        if rule is not None and rule.places(book, version) <= 0:
            running = ledger.count(SlotState.RUNNING)
            return Blocked(BlockedBy.LAG, f"{rule.came(book)} groups came and {running} are running: {rule.why(version)}")
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
        """Left by a rule that counts totals. None: there is none, or not yet."""
        rule = self._rule(book)
        return None if rule is None else rule.places(book, version)

    def check_open(self, book: Book, version: int) -> None:
        """StoppedByRule where the rule has closed the gate for good."""
        rule = self._rule(book)
        if rule is not None:
            rule.check_open(book, version)

    def _rule(self, book: Book) -> Rule | None:
        return self._surplus if self._admission is None or self.calibrating(book) else self._admission

    def _wanted(self, book: Book) -> bool:
        """Does the plan want one more slot? A surplus overshoots it until the last batch is trained."""
        trained = book.ledger.count(SlotState.TRAINED)
        return trained < self.plan.target if self._options.surplus else self.plan.wants(trained, book.ledger.outstanding)
