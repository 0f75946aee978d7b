"""What a mutant is, and the invariants that one may break."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """In the function ``where`` the code ``before``, found exactly once, becomes ``after``; ``test`` must then fail.

    ``where`` is a qualified name, wherever below src/trimtab the function stands: ``Pool.turn``; ``views:_without`` says the module,
    too, where several have a function of that name. ``before`` and ``after`` are Python: an expression each, or statements. They are
    compared as code, so line breaks, comments, quotes and the depth of indentation do not matter, and neither does the file.
    """

    invariant: int
    name: str
    where: str
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
