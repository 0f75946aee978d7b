"""What a mutant is, and the invariants that one may break."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """In ``file`` (below src/trimtab) the text ``before``, found exactly once, becomes ``after``; ``test`` must then fail."""

    invariant: int
    name: str
    file: str
    before: str
    after: str
    test: str


INVARIANTS = {
    0: "a method is its formula",
    1: "lag zero is synchronous",
    2: "the bound is a theorem",
    3: "one denominator",
    4: "masks never hide",
    5: "a skipped step moves nothing",
    6: "exactly once",
    7: "publishing is two-phase",
    8: "nothing waits forever",
    9: "sampled and scored distributions are the same",
    10: "filters decide on the verifiable score",
}
