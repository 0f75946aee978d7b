"""What an engine is: it turns requests into sampled tokens, one decode step at a time, and serves one version of the weights.

An engine is single-threaded and passive: whoever owns it calls ``step``. Between two steps its owner may swap the weights
(``stage`` -> compare digests -> ``commit``), so a rollout may span versions; each token carries the version that sampled it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trimtab.records import F32, I32, Kept, Sampling, Segment, StopReason

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Continue ``prompt`` by at most ``max_new_tokens``; token i is drawn with ``keyed.uniform(key, turn, i)`` by inverse CDF.

    The inverse CDF runs over the vocabulary in order of token id (kept ids only where the distribution is cut), in float64.
    """

    id: int
    prompt: I32
    max_new_tokens: int
    sampling: Sampling
    key: int
    turn: int = 0
    stop_ids: tuple[int, ...] = ()  # sampled, kept in the response, then generation ends (the EOS ids)
    stop_rule: Callable[[I32], bool] | None = None  # asked after every token whether the response so far ends there; it is kept whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The sampled continuation: per-token log-prob (of the distribution sampled from), version, and kept set where cut.

    ``forgetting``: of the tokens before the last swap as the version after it scores them, where the engine was asked for it.
    """

    id: int
    tokens: I32
    logp: F32
    versions: I32
    incarnation: int
    stop: StopReason
    started: float  # wall clock, seconds
    finished: float
    kept: Kept | None = None
    forgetting: float | None = None


class Replica(Protocol):
    """One holder of weights. ``stage`` never disturbs what is served; ``commit`` swaps between decode steps, atomically."""

    @property
    def version(self) -> int: ...
    @property
    def incarnation(self) -> int: ...
    def stage(self, version: int, incarnation: int, weights: Mapping[str, Tensor]) -> str:
        """Copy the weights beside the served ones; return the digest of the staged bytes."""
        ...

    def commit(self, version: int) -> None:
        """Serve the staged version from the next decode step on; refused if another version is staged."""
        ...

    def abort(self) -> None:
        """Forget what is staged."""
        ...


class Engine(Replica, Protocol):
    """A replica that generates."""

    @property
    def slots(self) -> int: ...
    @property
    def running(self) -> int:
        """Rows that hold a place; requests that wait for one are not counted."""
        ...

    @property
    def reports_kept(self) -> bool:
        """True where kept sets are reported, so that a cut distribution can be scored exactly."""
        ...

    def submit(self, request: Request) -> None:
        """Queue a request; it starts when a slot is free."""
        ...

    def step(self) -> list[Completion]:
        """One decode step of every running row; finished rows leave and their places are refilled."""
        ...

    def cancel(self, request_id: int) -> None:
        """Forget a request, waiting or running: it yields no completion. One that is not here has finished and is ignored."""
        ...

    def score(self, segments: Sequence[Segment]) -> list[F32]:
        """Log-probs of the action tokens of each segment under the served weights and the segment's own sampling."""
        ...

    def close(self) -> None: ...
