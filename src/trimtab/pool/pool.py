"""The pool: who may generate, what may be trained on, and who waits for whom.

    worker ── admit ──▶ Ticket ──(generates)── deliver ──▶ waiting ── form ──▶ Batch ── consumed(version) ──▶ trained
                 ▲                    │ fail, lost, expire                                    │
                 └── first in line ◀──┘                      version c, c + 1 ◀───────────────┘

A state machine without threads, clocks or tensors of its own: time is passed in, and every call returns at once. Calls come one at
a time: in the local runtime both the controller's thread and the learner's make them, each under the controller's lock. The methods
of the pool's side belong to it, so they need no lock of their own; what became of an update they are told by ``consumed``. What was
let go, by a method or by the pool, is noted and told with the next batch, over restarts too. Why no token older than ``max_lag`` is
ever trained on, why nothing blocks for ever, and who wakes whom: ``docs/pool-theorem.md``.
"""

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from trimtab.control.pool_chain import PoolChain
from trimtab.control.protocol import Notes, Selection, StepResult
from trimtab.pool import choose, facts, measure
from trimtab.pool.admission import Bounds
from trimtab.pool.book import Book, BookState
from trimtab.pool.choose import Choice
from trimtab.pool.facts import Facts
from trimtab.pool.gate import Gate
from trimtab.pool.ledger import LiveSlot, SlotState
from trimtab.pool.options import PoolOptions
from trimtab.pool.plan import Plan, PlanState
from trimtab.pool.results import Blocked, Delivery, Fate, Finished, Formed, NotYet, Straggler, Ticket
from trimtab.records import Batch, Decision, Group, Json, Slot, StoppedByRule, TrimtabError

EXPIRED = "expired"  # stranded by a selector: it would have become older than max_lag
LET_GO = "let go"  # by a selector
REQUEUED = "requeued"  # by a selector: the prompt comes again
DEADLINE = "deadline"
SURPLUS = "surplus"  # left over at the end of a run that brings more than it trains on


class PoolState(BaseModel):
    """Everything but the groups."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int
    plan: PlanState
    book: BookState


class Pool:
    """Admission and batch forming over one plan.

    ``group_size`` is the number of rollouts of a whole group. ``incarnation`` is the one now generating: groups of another are
    refused at ``deliver`` (those loaded from a checkpoint stay). ``calibration``: that many batches at lag 0 come first.
    """

    def __init__(
        self,
        options: PoolOptions,
        plan: Plan,
        *,
        group_size: int,
        version: int = 0,
        incarnation: int = 0,
        chain: PoolChain | None = None,
        calibration: int = 0,
    ) -> None:
        if options.min_group is not None and options.min_group > group_size:
            raise TrimtabError.field("rollout.min_group", options.min_group, f"a group has {group_size} rollouts; give at most that many")
        self.options = options
        self.plan = plan
        self.version = version
        self.incarnation = incarnation
        self._book = Book()
        self._min_group = group_size if options.min_group is None else options.min_group
        self._gate = Gate(options, plan, calibration)
        self.chain = chain or PoolChain([])
        self._blocked: dict[str, Blocked] = {}  # the last answer to each worker, where it was no ticket
        self._late: NotYet | None = None  # the last answer to the learner, where it was no batch

    @property
    def batches(self) -> int:
        """Batches consumed."""
        return self._book.ledger.count(SlotState.TRAINED) // self.plan.batch_groups

    @property
    def turn(self) -> int:
        """The version at which the next batch will be formed, at the latest."""
        return self.version + bool(self._book.training)

    @property
    def bounds(self) -> Bounds:
        """The limits now in force."""
        return self._gate.bounds(self._book)

    @property
    def calibrating(self) -> bool:
        """The first batches, at lag 0, are not all consumed yet."""
        return self._gate.calibrating(self._book)

    def trained(self) -> list[Slot]:
        """Every slot trained on so far, in order."""
        return self._book.ledger.trained()

    # ----------------------------------------------------------------------------------------------------- the worker's side

    def admit(self, worker: str, held: int, now_s: float) -> Ticket | Blocked:
        """The next group for a worker that holds version ``held``: slots in line first, then the plan's next one.

        Raises :class:`StoppedByRule` after ``max_fruitless`` batches' worth of drops and failures in a row, and ``ValueError``
        if ``held`` is newer than the learner's version: publish after ``consumed``.
        """
        if held > self.version:
            raise ValueError(f"{worker} holds version {held}, the learner stands at {self.version}; publish after consumed()")
        blocked = self._gate.block(self._book, worker, held, self.version)
        if blocked is not None:
            self._blocked[worker] = blocked
            return blocked
        self._blocked.pop(worker, None)
        entry = self._book.run(self._next(), worker, held, now_s)
        return Ticket(slot=entry.slot, prompt=entry.prompt, attempt=entry.attempt, worker=worker, held=held)

    def deliver(self, worker: str, group: Group) -> Delivery:
        """A finished group; it enters at the learner's version of now. Members that are no evidence leave it first.

        Raises ``ValueError`` if a token is newer than the learner's version: publish after ``consumed``.
        """
        entry = self._running(worker, group.slot, group.attempt)
        if entry is None:
            return self._refuse(group.slot, f"attempt {group.attempt} is not running at {worker}")
        if any(s.incarnation != self.incarnation for r in group.rollouts for s in r.segments):
            return self._refuse(group.slot, f"sampled under another incarnation than {self.incarnation}")
        group = measure.valid(group)
        if len(group.rollouts) < self._min_group:
            return self._attempt_failed(entry, f"fewer than {self._min_group} valid rollouts")
        arrived = measure.measure(group)
        if arrived.newest > self.version:
            raise ValueError(f"{worker} delivers version {arrived.newest}, the learner stands at {self.version}; publish after consumed()")
        if arrived.oldest < entry.charge:  # left over from an earlier life of this worker: its charge does not cover it
            return self._refuse(group.slot, f"has a token of version {arrived.oldest}, {worker} was charged with {entry.charge}")
        self._book.arrive(entry, arrived, self.version)
        reject = self.chain.accept(measure.stats(arrived, self.version, self._book.noted), self._book.noted)
        if reject is None:
            return Delivery(group.slot, Fate.WAITING)
        self._book.drop(entry, reject.reason)
        self._book.unfit += 1
        return Delivery(group.slot, Fate.DROPPED, reject.reason)

    def fail(self, worker: str, slot: Slot, attempt: int, reason: str, *, retry: bool = True) -> Delivery:
        """The worker could not generate the group: it is tried again, ``max_attempts`` times in all.

        Not where ``retry`` says that no attempt can do better: then its row is never drawn again.
        """
        entry = self._running(worker, slot, attempt)
        if entry is None:
            return self._refuse(slot, f"attempt {attempt} is not running at {worker}")
        if not retry:
            self._book.hopeless.add(entry.prompt)
        return self._attempt_failed(entry, reason, retry=retry)

    def lost(self, worker: str) -> list[Slot]:
        """The worker is gone: its slots are first in line again, in order, at the same attempt."""
        entries = [e for e in self._book.ledger.live(SlotState.RUNNING) if e.worker == worker]
        for entry in entries:
            self._book.give_back(entry)
        self._blocked.pop(worker, None)
        return [e.slot for e in entries]

    def expire(self, now_s: float) -> list[Straggler]:
        """Fail the slots that have been with a worker for longer than ``straggler_deadline_s``."""
        late = [e for e in self._book.ledger.live(SlotState.RUNNING) if now_s - e.since_s > self.options.straggler_deadline_s]
        named = [facts.straggler(e) for e in late]
        for entry in late:
            self._book.fail(entry, DEADLINE)
        return named

    def free(self, held: int | None = None) -> int:
        """How many new groups a worker that holds ``held`` (default: the learner's version) could be given now."""
        return self._gate.free(self._book, self.version if held is None else held, self.version)

    def unscored(self) -> list[Group]:
        """Waiting groups whose interrupted members lack a forgetting score."""
        return self._book.unscored()

    def rescored(self, group: Group) -> None:
        """Such a group with its scores; nothing happens where it has left meanwhile."""
        self._book.rescored(group)

    def _next(self) -> Slot:
        if self._book.in_line:
            return self._book.next_in_line()
        if self._book.fruitless >= self.options.max_fruitless * self.plan.batch_groups:
            raise StoppedByRule(
                f"runtime.max_fruitless = {self.options.max_fruitless}: {self._book.fruitless} groups in a row were dropped or failed "
                f"without a batch between them; mend the cause ({self._book.ledger.causes()}) or raise the limit"
            )
        if len(self._book.hopeless) >= self.plan.prompts:
            raise StoppedByRule(f"none of the {self.plan.prompts} rows can be run ({self._book.ledger.causes()}); mend the data")
        slot, row = self.plan.draw()
        while row in self._book.hopeless:
            slot, row = self.plan.draw()
        self._book.ledger.admit(slot, row)
        return slot

    def _running(self, worker: str, slot: Slot, attempt: int) -> LiveSlot | None:
        entry = self._book.ledger.get(slot)
        known = entry is not None and entry.state is SlotState.RUNNING and entry.worker == worker and entry.attempt == attempt
        return entry if known else None

    def _refuse(self, slot: Slot, why: str) -> Delivery:
        self._book.refused += 1
        return Delivery(slot, Fate.REFUSED, why)

    def _attempt_failed(self, entry: LiveSlot, reason: str, *, retry: bool = True) -> Delivery:
        if retry and entry.failures + 1 < self.options.max_attempts:
            self._book.retry(entry)
            return Delivery(entry.slot, Fate.RETRIED, reason)
        self._book.fail(entry, reason)
        self._book.set_aside.add(entry.prompt)
        return Delivery(entry.slot, Fate.FAILED, reason)

    # ---------------------------------------------------------------------------------------------------- the learner's side

    def form(self) -> Formed | NotYet | Finished:
        """The next batch, the slots it waits for, or the end of the plan. ``consumed`` comes before the next call."""
        book, self._late = self._book, None
        if book.training:
            raise RuntimeError("a batch is in training; consumed() comes before the next form()")
        if book.ledger.count(SlotState.TRAINED) >= self.plan.target:
            left = [book.drop(entry, SURPLUS) for entry in book.waiting()]  # every slot reaches a terminal state
            if left:
                book.noted.note(facts.own(SURPLUS, left, "left over when the plan was trained"))
            return Finished()
        choice, notes, selection = self._choose()
        expired = [book.drop(e, EXPIRED) for e in choice.expired]
        let_go = [*(book.drop(e, LET_GO) for e in choice.reject), *(book.requeue(e, REQUEUED) for e in choice.requeue), *expired]
        book.gone += let_go
        if expired:
            why = f"passed over by the selector, they would have become older than max_lag = {self.bounds.max_lag}"
            notes.note(facts.own(EXPIRED, expired, why))
        if choice.take or let_go:  # else nothing has happened: a poll is not noted
            notes.add(book.noted)
            book.noted = notes
        if not choice.take:
            self._late = facts.waiting(choice.late, max(0, self.plan.batch_groups - book.ledger.outstanding), let_go)
            self._gate.check_open(book, self.version)
            return self._late
        take = sorted(choice.take, key=lambda e: e.slot)  # the learner's sums do not depend on who was faster
        ages = tuple(facts.aged(e, book[e.slot].mean_version, self.version, self.bounds.max_lag) for e in take)
        batch = Batch(number=self.batches, version=self.version, groups=tuple(book[e.slot].group for e in take))
        if selection is not None:
            self.chain.formed(selection)
        if self.chain.selector is not None:
            book.bias.compare([book[e.slot] for e in take], book.gone, notes)
        book.form(take)
        return Formed(batch=batch, ages=ages, let_go=tuple(let_go), notes=notes)

    def consumed(self, version: int, told: Iterable[StepResult] = ()) -> None:
        """The learner has consumed the batch and now stands at ``version``: one more if it was applied, the same if skipped.

        ``told``: what became of its updates, for the methods of this side.
        Call it before publishing: a worker may hold ``version`` only from then on.
        """
        if not self._book.training:
            raise RuntimeError("no batch is in training; form() comes before consumed()")
        if version not in (self.version, self.version + 1):
            raise ValueError(
                f"a batch formed at version {self.version} cannot leave the learner at {version}; versions rise by one or stay"
            )
        self._book.train()
        self.version = version
        for result in told:
            self.chain.after(result)

    def _choose(self) -> tuple[Choice, Notes, Selection | None]:
        book, want, notes = self._book, self.plan.batch_groups, Notes()
        debts = self.bounds.owed(book.profile, self.version)
        if self.chain.selector is None or len(book.by_serial) < want:
            live = list(book.ledger.live())
            fifo = self.options.order == "fifo"
            return choose.fifo(live, want) if fifo else choose.ready(live, book.waiting(), want, debts), notes, None
        view = book.columns.view(self.version, want, notes)
        selection = self.chain.select(view, want)
        if selection is not None:
            return choose.selected(selection, view, book.by_serial, book.ledger.live(), want, debts), notes, selection
        late = [e for e in book.ledger.live() if e.state is not SlotState.WAITING]
        if not late and not self.free():
            why = f"the selector forms no batch of {len(book.by_serial)} waiting groups and no other can come; raise depth"
            raise TrimtabError.field("runtime.depth", self.bounds.depth, why)
        return Choice(late=late), notes, None

    # -------------------------------------------------------------------------------------------- checkpoint and telemetry

    def state_dict(self) -> dict[str, Json]:
        """Plain JSON, without the groups. A batch in training is saved as waiting, a running slot as first in line."""
        return PoolState(version=self.version, plan=self.plan.state(), book=self._book.state()).model_dump(mode="json")

    def waiting_groups(self) -> list[Group]:
        """The groups that go with ``state_dict``, in order of admission."""
        return list(self._book.groups())

    def load_state_dict(self, state: Json, groups: Iterable[Group]) -> None:
        """Go on from a checkpoint: the state and the groups saved with it.

        Raises :class:`TrimtabError` if groups are missing, or are too old for this run's ``max_lag``.
        """
        saved = PoolState.model_validate(state)
        self.version = saved.version
        self.plan.restore(saved.plan)
        self._book = Book.restored(saved.book, groups)
        self._blocked, self._late = {}, None
        needed = self.bounds.needed(self._book.profile, self.version)
        if self.bounds.max_lag is not None and self.bounds.max_lag < needed:
            remedy = f"the checkpoint's groups need {needed}; give {needed} or more"
            raise TrimtabError.field("runtime.max_lag", self.bounds.max_lag, remedy)

    def untold(self) -> Sequence[Decision]:
        """What has been decided since the last batch: told with the next one, if there is one."""
        return tuple(self._book.noted.decisions)

    def facts(self, now_s: float) -> Facts:
        """The pool at a glance."""
        return facts.gather(self._book, self.bounds, self.turn, self.free(), self._late, self._blocked, now_s)
