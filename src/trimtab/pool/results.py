"""What the pool answers."""

from dataclasses import dataclass, field
from enum import StrEnum

from trimtab.control.protocol import Notes
from trimtab.records import Batch, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """Generate the group of row ``prompt``; its first token may not be older than version ``held``."""

    slot: Slot
    prompt: int
    attempt: int
    worker: str
    held: int


class BlockedBy(StrEnum):
    """What has to happen before a worker can be given a group."""

    PLAN = "plan"  # every planned slot is admitted: a drop or failure opens another
    DEPTH = "depth"  # samplers are as far ahead as they may be: a consumed, dropped or failed group frees a place
    LAG = "lag"  # the group could not be trained in time: a batch is formed, or a group leaves the pool
    BEHIND = "behind"  # the worker's weights are too old: it takes newer ones


@dataclass(frozen=True, slots=True)
class Blocked:
    """No group for this worker now; ``why`` is a sentence."""

    by: BlockedBy
    why: str


class Fate(StrEnum):
    """What became of a delivery."""

    WAITING = "waiting"  # in the pool
    DROPPED = "dropped"  # a method did not accept it; its slot is free
    RETRIED = "retried"  # the attempt failed; the prompt is first in line again
    FAILED = "failed"  # it failed for the last time; its slot is free, its prompt is set aside
    REFUSED = "refused"  # nobody waits for this delivery (a late one, or of a dead incarnation); nothing changed


@dataclass(frozen=True, slots=True)
class Delivery:
    """The answer to ``deliver`` and ``fail``."""

    slot: Slot
    fate: Fate
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A slot somebody waits for: with ``worker`` since ``since_s`` (or in line for a worker: ``worker`` is empty)."""

    slot: Slot
    worker: str
    since_s: float
    charge: int

    def __str__(self) -> str:
        where = f"at {self.worker}" if self.worker else "in line for a worker"
        return f"({self.slot.epoch}, {self.slot.index}) {where}"


@dataclass(frozen=True, slots=True)
class NotYet:
    """No batch yet: these slots have to come first, and ``missing`` more have to be admitted. ``let_go``: by the selector, at once."""

    stragglers: tuple[Straggler, ...]
    missing: int
    why: str
    let_go: tuple["LetGo", ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The plan is trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aged:
    """Ages of a trained group, in versions: ``generation`` + ``waiting`` is the mean age of its tokens, ``oldest`` the bounded one."""

    slot: Slot
    generation: float  # entered - mean version
    waiting: int  # now - entered
    oldest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """A group that was finished but will not be trained on (``requeued``: its prompt comes again)."""

    slot: Slot
    reason: str
    score: float
    length: float
    accuracy: float = 0.0
    requeued: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Formed:
    """A batch, its groups in order of slot; ``ages`` in the same order; the groups its forming let go; what the pool has to say of it."""

    batch: Batch
    ages: tuple[Aged, ...]
    let_go: tuple[LetGo, ...] = ()
    notes: Notes = field(default_factory=Notes)


@dataclass(slots=True)
class FateTally:
    """Groups of one fate and the sums of their mean lengths, scores and accuracies, so that selection bias can be seen."""

    groups: int = 0
    length: float = 0.0
    score: float = 0.0
    accuracy: float = 0.0

    def add(self, length: float, score: float, accuracy: float) -> None:
        self.groups += 1
        self.length += length
        self.score += score
        self.accuracy += accuracy
