"""How an update's groups become micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from trimtab.learner.packing import Packed
from trimtab.learner.views import rewards
from trimtab.methods.protocol import View
from trimtab.records import Group, Rollout


@dataclass(slots=True)
class Micro:
    """Rollouts that pass through the model together. ``live``: they get a backward; ``whole``: no group of theirs is elsewhere."""

    rollouts: list[Rollout]
    group_R: list[int]
    index_R: list[int]  # place in the update's list of rollouts
    live: bool
    whole: bool
    packed: Packed = field(init=False)
    view: View = field(init=False)


@dataclass(slots=True)
class Seen:
    """What an update saw, for the metrics: token and rollout columns in the order of the update's rollouts, whatever the split."""

    log_ratio_N: np.ndarray
    age_N: np.ndarray
    log_ratio_R: np.ndarray
    entropy_N: np.ndarray | None = None  # of the rollouts that got a backward


class _Place(NamedTuple):
    rollout: Rollout
    group: int
    place: int  # in the update's list of rollouts


def plan_micros(groups: Sequence[Group], budget: int | None, *, silent: bool) -> list[Micro]:
    """Live groups first, then silent ones (equal rewards under a silent credit owner: forward only, no backward).

    Without a budget each kind is one micro-batch. With one, micro-batches are filled with whole groups up to ``budget`` tokens;
    a group larger than that is split by rollouts. Every micro-batch has an action token; at least one of ``groups`` must.
    """
    places: list[list[_Place]] = []
    for g, group in enumerate(groups):
        first = sum(map(len, places))
        places.append([_Place(rollout, g, first + i) for i, rollout in enumerate(group.rollouts)])
    quiet = [silent and bool(np.ptp(rewards(group.rollouts)) == 0) for group in groups]
    out: list[Micro] = []
    for live in (True, False):
        chosen = [place for place, is_quiet in zip(places, quiet, strict=True) if is_quiet is not live]
        out.extend(_fill(chosen, budget, live))
    return _without_empty(out)


def _tokens(rollout: Rollout) -> int:
    """Tokens that enter the model; a rollout without a valid action token takes no rows."""
    return sum(len(s.tokens) for s in rollout.segments if s.actions)


def _fill(groups: Sequence[list[_Place]], budget: int | None, live: bool) -> list[Micro]:
    bins: list[tuple[list[_Place], bool]] = []
    used = 0
    for group in groups:
        size = sum(_tokens(p.rollout) for p in group)
        if budget is not None and size > budget:
            bins.extend((part, False) for part in _split(group, budget))
        elif bins and bins[-1][1] and (budget is None or used + size <= budget):
            bins[-1][0].extend(group)
            used += size
        else:
            bins.append((list(group), True))
            used = size
    return [Micro([p.rollout for p in b], [p.group for p in b], [p.place for p in b], live, whole) for b, whole in bins]


def _split(group: Sequence[_Place], budget: int) -> list[list[_Place]]:
    """A group in parts of at most ``budget`` tokens; a longer rollout is a part of its own."""
    parts: list[list[_Place]] = [[]]
    room = budget
    for place in group:
        size = _tokens(place.rollout)
        if parts[-1] and size > room:
            parts.append([])
            room = budget
        parts[-1].append(place)
        room -= size
    return parts


def _has_action(m: Micro) -> bool:
    return any(r.actions for r in m.rollouts)


def _without_empty(micros: list[Micro]) -> list[Micro]:
    """Rollouts without an action token cannot pass through the model alone: they ride with others, of their own group if it has any."""
    full = [m for m in micros if _has_action(m)]
    for m in (m for m in micros if not _has_action(m)):
        host = full[0]
        host.rollouts += m.rollouts
        host.group_R += m.group_R
        host.index_R += m.index_R
        host.whole &= m.whole
    return full


def collect(micros: Sequence[Micro]) -> Seen:
    """The columns of all micro-batches, in the order of the update's rollouts, so that sums over them are the same to the bit."""
    live = [m for m in micros if m.view.entropy_N is not None]
    return Seen(
        log_ratio_N=_tokens_in_order(micros, [m.view.log_ratio_N.double() for m in micros]),
        age_N=_tokens_in_order(micros, [m.view.age_N for m in micros]),
        log_ratio_R=_in_order([np.asarray(m.index_R) for m in micros], [m.view.log_ratio_R for m in micros]),
        entropy_N=_tokens_in_order(live, [m.view.entropy_N.double() for m in live if m.view.entropy_N is not None]) if live else None,
    )


def _tokens_in_order(micros: Sequence[Micro], columns: Sequence[Tensor]) -> np.ndarray:
    return _in_order([np.asarray(m.index_R)[m.view.rollout_N.cpu().numpy()] for m in micros], columns)


def _in_order(keys: Sequence[np.ndarray], columns: Sequence[Tensor]) -> np.ndarray:
    order = np.argsort(np.concatenate(keys), kind="stable")
    return np.concatenate([c.cpu().numpy() for c in columns])[order]
