"""What the model and a real run are compared by: one definition for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """One consumed batch."""

    end_s: float  # when the learner was done with it
    wait_s: float  # the learner waited for it
    tokens: int
    age: float  # sums over its tokens, in versions
    generation: float
    busy_s: float  # of all samplers since the batch before
    idle_s: float
    trained: int  # groups
    let_go: int  # groups let go since the batch before
    waiting: int  # groups left in the pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Over the batches after a warm-up."""

    batches: int
    batches_per_s: float
    age: float  # mean over trained tokens, versions
    generation: float  # its part from before the rollout's last token
    waiting: float  # and after
    learner_idle: float  # share of its time that it waits
    sampler_idle: float  # share of its time that a sampler has no group at all
    let_go: float  # share of the groups that left the pool without being trained on
    pool: float  # groups waiting in the pool, mean over batches

    def table(self) -> dict[str, float]:
        return asdict(self)


def figures(batches: Sequence[BatchFacts], warm: int) -> Figures:
    """Of all batches but the first ``warm``, whose end is where time begins."""
    if not 0 < warm < len(batches):
        raise ValueError(f"{len(batches)} batches leave none after a warm-up of {warm}; the warm-up has at least one")
    kept = batches[warm:]
    wall = kept[-1].end_s - batches[warm - 1].end_s
    tokens = sum(b.tokens for b in kept) or 1
    age, generation = (sum(getattr(b, name) for b in kept) / tokens for name in ("age", "generation"))
    busy, idle = sum(b.busy_s for b in kept), sum(b.idle_s for b in kept)
    trained, let_go = sum(b.trained for b in kept), sum(b.let_go for b in kept)
    return Figures(
        batches=len(kept),
        batches_per_s=len(kept) / wall,
        age=age,
        generation=generation,
        waiting=age - generation,
        learner_idle=sum(b.wait_s for b in kept) / wall,
        sampler_idle=idle / (busy + idle) if busy + idle else 0.0,
        let_go=let_go / (trained + let_go) if trained + let_go else 0.0,
        pool=sum(b.waiting for b in kept) / len(kept),
    )
