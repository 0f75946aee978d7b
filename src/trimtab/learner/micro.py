"""How an update's groups become micro-batches, and how their columns become one again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trimtab.control.protocol import View
from trimtab.learner.packing import Packed
from trimtab.learner.passes import Pass
from trimtab.learner.ranks import Ranks
from trimtab.learner.views import join, reorder, rewards
from trimtab.records import Group, Rollout, equal_rewards


@dataclass(frozen=True, slots=True)
class Share:
    """Consecutive groups of an update that one rank trains on. ``first_group``: number of the first within the update,
    ``first_place``: place of its first rollout in the batch."""

    groups: Sequence[Group]
    first_group: int = 0
    first_place: int = 0


def share(groups: Sequence[Group], first_place: int, ranks: Ranks) -> Share:
    """This rank's part of an update's groups: whole groups, consecutive."""
    bounds = np.linspace(0, len(groups), ranks.size + 1).astype(int).tolist()
    a, b = list(pairwise(bounds))[ranks.rank]
    return Share(groups[a:b], a, first_place + sum(len(g.rollouts) for g in groups[:a]))


@dataclass(slots=True)
class Micro:
    """Rollouts that pass through the model together. ``live``: they get a backward; ``whole``: no group of theirs is elsewhere."""

    rollouts: list[Rollout]
    group_R: list[int]
    places: list[int]  # in the batch's list of rollouts
    live: bool
    whole: bool
    packed: Packed = field(init=False)
    view: View = field(init=False)
    opened: Pass | None = None  # the forward whose graph awaits the backward

    @property
    def lengths(self) -> list[int]:
        """Action tokens of each rollout."""
        return [int(n) for n in self.view.length_R.tolist()]


@dataclass(slots=True)
class Seen:
    """What an update saw on all ranks, for the metrics and the step: columns in the order of the rollouts, whatever the split."""

    log_ratio_N: np.ndarray
    age_N: np.ndarray
    log_ratio_R: np.ndarray
    entropy_N: np.ndarray | None = None  # of the rollouts that got a backward


class _Place(NamedTuple):
    rollout: Rollout
    group: int
    place: int  # in the batch's list of rollouts


def plan_micros(share: Share, budget: int | None, *, silent: bool) -> list[Micro]:
    """Live groups first, then silent ones (equal rewards under a silent credit owner: forward only, no backward).

    Without a budget each kind is one micro-batch. With one, micro-batches are filled with whole groups up to ``budget`` tokens;
    a group larger than that is split by rollouts. Every micro-batch has an action token; without any there is none.
    """
    places: list[list[_Place]] = []
    first = share.first_place
    for g, group in enumerate(share.groups, share.first_group):
        places.append([_Place(rollout, g, first + i) for i, rollout in enumerate(group.rollouts)])
        first += len(group.rollouts)
    quiet = [silent and equal_rewards(rewards(group.rollouts)) for group in share.groups]
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
    if not full:
        return []
    for m in (m for m in micros if not _has_action(m)):
        host = full[0]
        host.rollouts += m.rollouts
        host.group_R += m.group_R
        host.places += m.places
        host.whole &= m.whole
    return full


def whole_view(micros: Sequence[Micro], ranks: Ranks) -> tuple[View, list[int]]:
    """One view over the rollouts of these micro-batches on all ranks, in the order of the rollouts, and their places. Collective.

    Columns that some micro-batch lacks are None. A single micro-batch of a single rank whose rollouts lie in order gives its own view.
    """
    mine = join([m.view for m in micros]) if micros else None
    gathered = ranks.gather((mine, [place for m in micros for place in m.places]))
    views = [view for view, _ in gathered if view is not None]
    places = [place for _, found in gathered for place in found]
    whole = join(views, None if mine is None else mine.recorder)
    if places == sorted(places):
        return whole, places
    order = np.argsort(places, kind="stable")
    return reorder(whole, order), [places[i] for i in order]


def collect(micros: Sequence[Micro], ranks: Ranks) -> Seen:
    """The columns of all micro-batches and ranks, ordered by rollout, so that sums over them are the same to the bit. Collective."""
    live = [m for m in micros if m.view.entropy_N is not None]
    return Seen(
        log_ratio_N=_tokens_in_order(micros, [m.view.log_ratio_N.double() for m in micros], ranks),
        age_N=_tokens_in_order(micros, [m.view.age_N for m in micros], ranks),
        log_ratio_R=_in_order([np.asarray(m.places) for m in micros], [m.view.log_ratio_R for m in micros], ranks),
        entropy_N=_entropy(live, ranks),
    )


def applied_weights(micros: Sequence[Micro], weights: Sequence[Tensor], ranks: Ranks) -> tuple[Tensor, Tensor]:
    """(``weights``: mean applied weight of each rollout's tokens; its action tokens) of all ranks, in rollout order. Collective."""
    places = [np.asarray(m.places) for m in micros]
    return (
        torch.from_numpy(_in_order(places, weights, ranks)),
        torch.from_numpy(_in_order(places, [m.view.length_R for m in micros], ranks)),
    )


def _entropy(live: Sequence[Micro], ranks: Ranks) -> np.ndarray | None:
    found = _tokens_in_order(live, [m.view.entropy_N.double() for m in live if m.view.entropy_N is not None], ranks)
    return found if found.size else None


def _tokens_in_order(micros: Sequence[Micro], columns: Sequence[Tensor], ranks: Ranks) -> np.ndarray:
    return _in_order([np.asarray(m.places)[m.view.rollout_N.cpu().numpy()] for m in micros], columns, ranks)


def _in_order(keys: Sequence[np.ndarray], columns: Sequence[Tensor], ranks: Ranks) -> np.ndarray:
    mine = [(key, column.cpu().numpy()) for key, column in zip(keys, columns, strict=True)]
    parts = [part for found in ranks.gather(mine) for part in found]
    if not parts:
        return np.zeros(0)
    order = np.argsort(np.concatenate([key for key, _ in parts]), kind="stable")
    return np.asarray(np.concatenate([column for _, column in parts])[order])
