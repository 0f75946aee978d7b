"""In which order an epoch visits the rows: a function of the seed and the epoch alone, so that a resume needs no more than a count."""

from collections.abc import Callable, Sequence

import numpy as np

from trimtab import keyed
from trimtab.records import I64

Order = Callable[[int], I64]  # epoch -> the row of each of its slots


def whole(seed: int, rows: I64) -> Order:
    """Every one of ``rows`` once an epoch, in keyed order."""
    return lambda epoch: rows[keyed.permutation(seed, epoch, len(rows))]


def mixed(seed: int, parts: Sequence[I64], weights: Sequence[float]) -> Order:
    """Several sets of rows with weights: an epoch has as many slots as there are rows, and :func:`quotas` says how many go to each set.

    A set is gone through in keyed passes of its own, epoch after epoch: no row of it comes k + 2 times before another has come k times.
    """
    total = sum(len(rows) for rows in parts)
    shares = quotas(total, weights)
    ends = np.cumsum(shares)
    seeds = [int(keyed.fold(keyed.ORDER, seed, i) >> np.uint64(1)) for i in range(len(parts))]

    def order(epoch: int) -> I64:
        place = keyed.permutation(seed, epoch, total)
        part = np.searchsorted(ends, place, side="right")
        out = np.zeros(total, np.int64)
        for i, rows in enumerate(parts):
            here = np.flatnonzero(part == i)
            drawn = epoch * shares[i] + place[here] - (ends[i] - shares[i])  # how many rows of this set came before
            turn, at = np.divmod(drawn, len(rows))
            for one in np.unique(turn).tolist():
                now = turn == one
                out[here[now]] = rows[keyed.permutation(seeds[i], one, len(rows))[at[now]]]
        return out

    return order


def quotas(slots: int, weights: Sequence[float]) -> list[int]:
    """How many of ``slots`` each weight gets: its share by largest remainders, but at least one; there are no fewer slots than weights."""
    exact = np.array(weights) / sum(weights) * slots
    given = np.maximum(np.floor(exact), 1).astype(np.int64)
    for i in np.argsort(given - exact, kind="stable")[: max(0, slots - int(given.sum()))]:
        given[i] += 1
    while given.sum() > slots:  # those of less than one slot were given one
        given[np.argmax(np.where(given > 1, given - exact, -np.inf))] -= 1
    return [int(n) for n in given]
