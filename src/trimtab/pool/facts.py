"""The pool at a glance, and its sentences: who waits for whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trimtab.pool.admission import Bounds
from trimtab.pool.book import Book
from trimtab.pool.ledger import LiveSlot, SlotState
from trimtab.pool.results import Aged, Blocked, FateTally, LetGo, NotYet, Straggler
from trimtab.records import Decision

NAMED = 3  # stragglers named in a sentence; more would not fit on a line of the live display


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Counts, the profile of charges beside its limits, selection bias, and who waits for whom."""

    counts: Mapping[str, int]  # slots by state; those in training are counted apart from those waiting
    outstanding: int
    free: int  # new groups that a worker with the newest weights could be given
    profile: tuple[tuple[int, int, int | None], ...]  # (v, O(<=v), the most it may be)
    reasons: Mapping[str, Mapping[str, int]]  # of drops and failures
    refused: int  # deliveries that nobody waited for
    fruitless: int  # drops and failures since the last consumed batch
    set_aside: tuple[int, ...]  # rows of poison prompts
    tallies: Mapping[str, FateTally]  # lengths and scores of what was trained beside what was let go, by reason
    waits: tuple[str, ...]


def straggler(entry: LiveSlot) -> Straggler:
    return Straggler(entry.slot, entry.worker, entry.since_s, entry.charge)


def name(stragglers: Sequence[Straggler], now_s: float | None = None) -> str:
    """``(0, 17) at w1 for 12 s, (0, 19) in line for a worker and 4 more``."""
    known = [f"{s} for {now_s - s.since_s:.0f} s" if now_s is not None and s.worker else str(s) for s in stragglers[:NAMED]]
    more = f" and {len(stragglers) - NAMED} more" if len(stragglers) > NAMED else ""
    return ", ".join(known) + more


def waiting(late: Sequence[LiveSlot], missing: int, let_go: Sequence[LetGo] = ()) -> NotYet:
    """The answer to a learner whose batch needs these entries and ``missing`` more."""
    stragglers = tuple(straggler(e) for e in late)
    parts = [name(stragglers)] if stragglers else []
    return NotYet(
        stragglers, missing, " and ".join([*parts, *([f"{missing} more groups to be admitted"] if missing else [])]), tuple(let_go)
    )


def aged(entry: LiveSlot, mean_version: float, version: int, bound: int | None) -> Aged:
    """Of a group that is taken. Raises if it is older than the bound: the pool is broken, and nothing of it may be trained on."""
    oldest = version - entry.charge
    if bound is not None and oldest > bound:
        raise RuntimeError(f"pool broken: slot {entry.slot} has age {oldest}, max_lag is {bound}")
    return Aged(slot=entry.slot, generation=entry.entered - mean_version, waiting=version - entry.entered, oldest=oldest)


def own(what: str, gone: Sequence[LetGo], why: str) -> Decision:
    """What the pool itself lets go."""
    return Decision(method="pool", point="select", what=what, amount=float(len(gone)), why=why)


def gather(book: Book, bounds: Bounds, turn: int, free: int, learner: NotYet | None, workers: Mapping[str, Blocked], now_s: float) -> Facts:
    """``learner`` and ``workers``: the last answers to those who now wait."""
    counts = {str(s): book.ledger.count(s) for s in SlotState}
    counts["training"] = len(book.training)
    counts["waiting"] -= len(book.training)
    waits = [f"{worker} waits: {blocked.why}" for worker, blocked in sorted(workers.items())]
    if learner is not None:
        waits.insert(0, f"learner waits for {name(learner.stragglers, now_s) or learner.why}")
    return Facts(
        counts=counts,
        outstanding=book.ledger.outstanding,
        free=free,
        profile=tuple((v, n, bounds.limit(v, turn)) for v, n in book.profile),
        reasons={str(state): dict(counter) for state, counter in book.ledger.reasons.items()},
        refused=book.refused,
        fruitless=book.fruitless,
        set_aside=tuple(sorted(book.set_aside)),
        tallies={fate: replace(tally) for fate, tally in book.tallies.items()},
        waits=tuple(waits),
    )
