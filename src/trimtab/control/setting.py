"""The run a chain stands in, as far as its methods must know it."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.control.points import Reduction


@dataclass(frozen=True, slots=True)
class Setting:
    """What the methods must know about the run to be checked against it."""

    group_size: int
    asynchronous: bool  # rollouts may be older than the weights they train, or are so at a batch's second update
    cut: bool  # top-k, top-p or allowed tokens cut the sampling distribution
    reports_kept: bool  # the engine reports kept sets
    reduction: Reduction = Reduction.SEQ_MEAN_TOKEN_MEAN
    norms: str = "auto"  # learner.norms: the procedure of exact per-sequence norms
