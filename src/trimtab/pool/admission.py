"""The lag bound as one inequality over the charges of the outstanding groups. Derivation: ``docs/pool-theorem.md``.

A group's *charge* is the version its worker held when the group was admitted; no token of it is older. With

    B      groups a batch                k       max_lag
    turn   the version at which the next batch will be formed, at the latest: the learner's version c,
           or c + 1 while a batch is in training
    O(<=v) groups that are charged v or less, not terminal and not in the batch in training

every operation of the pool keeps, for every charge v that is present,

    (I)    O(<=v) <= B (v + k - turn + 1)

The right side counts the places in the batches ``turn .. v + k``, the only ones in which a group charged v may be trained.
O is a step function that rises at charges only and the right side rises with v, so it is enough to look at the charges.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trimtab.pool.results import Blocked, BlockedBy


class Profile:
    """How many outstanding groups are charged with each version. Under (I) at most ``k + 1`` versions are present."""

    def __init__(self) -> None:
        self._count: dict[int, int] = {}

    def add(self, charge: int) -> None:
        self._count[charge] = self._count.get(charge, 0) + 1

    def remove(self, charge: int) -> None:
        """Raises ``ValueError`` for a charge that nobody holds."""
        held = self._count.get(charge, 0)
        if not held:
            raise ValueError(f"no outstanding group is charged with version {charge}")
        if held == 1:
            del self._count[charge]
        else:
            self._count[charge] = held - 1

    def __len__(self) -> int:
        return sum(self._count.values())

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(v, O(<=v)) at every charge present, oldest first."""
        total = 0
        for v in sorted(self._count):
            total += self._count[v]
            yield v, total

    def at_most(self, v: int) -> int:
        """O(<=v)."""
        return sum(n for charge, n in self._count.items() if charge <= v)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The two limits: the age of trained tokens (None: unbounded) and the batches that samplers may run ahead."""

    batch_groups: int
    max_lag: int | None
    depth: int | None  # None: no limit of this kind

    @property
    def most(self) -> int | None:
        """Outstanding groups under ``depth``: the batch in training and ``depth`` more. None: unlimited."""
        return None if self.depth is None else self.batch_groups * (self.depth + 1)

    def limit(self, v: int, turn: int) -> int | None:
        """The right side of (I): places in the batches ``turn .. v + k``. None: unlimited."""
        return None if self.max_lag is None else self.batch_groups * (v + self.max_lag - turn + 1)

    def room(self, profile: Profile, held: int, turn: int) -> int | None:
        """How many groups may be admitted at charge ``held``: min over v >= held of limit(v) - O(<=v). None: unlimited.

        0 or less for a worker so far behind that its group could not be trained at all.
        """
        return None if self.max_lag is None else self._tightest(profile, held, turn, self.max_lag)[0]

    def _tightest(self, profile: Profile, held: int, turn: int, lag: int) -> tuple[int, int, int]:
        """(places, v, O(<=v)) at the v that leaves the fewest places."""
        levels = [(held, profile.at_most(held)), *((v, n) for v, n in profile if v > held)]
        return min((self.batch_groups * (v + lag - turn + 1) - n, v, n) for v, n in levels)

    def owed(self, profile: Profile, turn: int) -> list[tuple[int, int]]:
        """(v, n) with n > 0: the batch formed at version ``turn`` must take n groups charged v or less out of the pool.

        n = O(<=v) - B (v + k - turn): what would not fit into the later batches ``turn + 1 .. v + k``. By (I) n <= B.
        """
        if self.max_lag is None:
            return []
        debts = ((v, n - self.batch_groups * (v + self.max_lag - turn)) for v, n in profile)
        return [(v, n) for v, n in debts if n > 0]

    def needed(self, profile: Profile, turn: int) -> int:
        """The smallest max_lag under which (I) holds."""
        return max((turn - v - 1 - (-n // self.batch_groups) for v, n in profile), default=0)

    def block(self, profile: Profile, worker: str, held: int, turn: int) -> Blocked | None:
        """Why (I) leaves no room for a worker that holds ``held``, where it leaves none."""
        if self.max_lag is None:
            return None
        places, v, n = self._tightest(profile, held, turn, self.max_lag)
        if places > 0:
            return None
        if held + self.max_lag < turn:
            oldest = turn - self.max_lag
            return Blocked(BlockedBy.BEHIND, f"{worker} holds version {held}, the next batch (version {turn}) takes {oldest} or newer")
        return Blocked(BlockedBy.LAG, f"{n} groups of version {v} or older fill the batches up to version {v + self.max_lag}")


def surplus_groups(batch_groups: int, surplus: float, batches: int, calibration: int) -> int:
    """How many groups lockstep has brought for the first ``batches`` batches; the ``calibration`` first have no surplus."""
    each = math.ceil(batch_groups * (1 + surplus) - 1e-9)
    return batch_groups * min(batches, calibration) + each * max(0, batches - calibration)
