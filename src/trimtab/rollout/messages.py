"""What the controller and a rollout worker say to each other, over one socket a worker.

Controller to worker: ``Assign``, ``Stage``, ``Commit``, ``Drop``. Worker to controller: ``Ready``, ``Done``, ``Failed``, ``Staged``,
``Committed``, ``Pulse``, ``Broken``. A worker answers a ``Stage`` with ``Staged`` and a ``Commit`` with ``Committed``, between two
decode steps; it serves the old version until then. There is no message for the end: a worker ends with its socket, or is killed,
since it holds nothing that the run needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trimtab.engines.forgetting import Phi
from trimtab.engines.options import EngineOptions
from trimtab.records import Group, Segment, Slot, StoppedByRule, TrimtabError
from trimtab.rollout.options import EvalOptions, RolloutOptions
from trimtab.rollout.verdict_counts import VerdictCounts
from trimtab.tasks.options import PromptOptions, VerifierOptions
from trimtab.telemetry.clock import Interval
from trimtab.telemetry.held_out import HeldOut

if TYPE_CHECKING:
    from trimtab.weights.shared import WeightLayout  # brings torch


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Everything a worker needs to start; sent once, first."""

    name: str
    seed: int
    model: str
    task: PromptOptions
    verifier: VerifierOptions
    rollout: RolloutOptions
    engine: EngineOptions
    layout: WeightLayout | None  # None: an evaluator, it reads model folders
    probe: tuple[Segment, ...]  # scored after a commit, to attest it
    threads: int
    origin: float  # the run's start on time.perf_counter
    timeline: bool
    log: str  # file the worker logs to
    data: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # what the learner read: (name, digest) by field
    rescore: Phi | None = None  # the engine scores the forgetting of rollouts that a swap interrupts


# ------------------------------------------------------------------------------------------------------- controller -> worker


@dataclass(frozen=True, slots=True)
class Assign:
    """Generate a group."""

    slot: Slot
    row: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Copy block ``block`` beside the served weights and answer with the digest of the copy."""

    version: int
    incarnation: int
    block: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Serve the staged version, score the first ``probes`` segments of the probe, and say so."""

    version: int
    probes: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Stop generating a group: nobody waits for it."""

    slot: Slot


# ------------------------------------------------------------------------------------------------------- worker -> controller


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine, the task and the verifier are up; ``room`` groups may be assigned."""

    pid: int
    room: int


@dataclass(frozen=True, slots=True)
class Done:
    """A finished group. ``counts``: what became of the responses since the worker's last ``Done`` or ``Failed``, of other groups, too."""

    group: Group
    counts: VerdictCounts


@dataclass(frozen=True, slots=True)
class Failed:
    """A group that could not be generated, and why. ``retry``: another attempt may do better; ``counts`` as of ``Done``."""

    slot: Slot
    attempt: int
    reason: str
    counts: VerdictCounts
    retry: bool


@dataclass(frozen=True, slots=True)
class Staged:
    version: int
    digest: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Committed:
    """Served from now on. ``pause``: how long generation stood still for it; ``probe``: log-probs of the tokens that were to be scored."""

    version: int
    pause: float
    probe: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """Sign of life: room for more groups, seconds busy and idle since the last pulse, what was done when."""

    room: int
    assigned: int  # groups taken so far: what was assigned later is not in ``room`` yet
    busy: float
    idle: float
    cpu: float
    intervals: tuple[Interval, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Broken:
    """The process cannot go on. ``exit_code``: of an error that a fresh process would meet again; 0 where one may do better."""

    reason: str
    exit_code: int

    def error(self, who: str) -> TrimtabError:
        kind = StoppedByRule if self.exit_code == StoppedByRule.exit_code else TrimtabError
        return kind(f"{who}: {self.reason}")


# ------------------------------------------------------------------------------------------------------------------ evaluator


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate the model folder, which holds ``version``; asked by the runtime after ``batch`` consumed batches."""

    batch: int
    version: int
    folder: str
    options: EvalOptions


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The answer, which took ``seconds``."""

    batch: int
    found: HeldOut
    seconds: float


ToWorker = Assign | Stage | Commit | Drop | Evaluate
FromWorker = Ready | Done | Failed | Staged | Committed | Pulse | Broken | Evaluated
