"""How an update's groups become micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trimtab.learner.packing import Packed
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


def plan_micros(groups: Sequence[Group], budget: int | None, *, silent: bool) -> list[Micro]:
    """Live groups first, then silent ones (equal scores under a silent credit owner: forward only, no backward).

    Without a budget each kind is one micro-batch. With one, micro-batches are filled with whole groups up to ``budget`` tokens;
    a group larger than that is split by rollouts.
    """
    places: list[list[tuple[int, int, Rollout]]] = []
    index = 0
    for g, group in enumerate(groups):
        places.append([])
        for rollout in group.rollouts:
            places[-1].append((index, g, rollout))
            index += 1
    quiet = [silent and bool(np.ptp(group.scores) == 0) for group in groups]
    out: list[Micro] = []
    for live in (True, False):
        chosen = [place for place, is_quiet in zip(places, quiet, strict=True) if is_quiet is not live and place]
        out.extend(_fill(chosen, budget, live))
    return out


def _tokens(rollout: Rollout) -> int:
    return sum(len(s.tokens) for s in rollout.segments)


def _fill(groups: Sequence[list[tuple[int, int, Rollout]]], budget: int | None, live: bool) -> list[Micro]:
    bins: list[tuple[list[tuple[int, int, Rollout]], bool]] = []
    used = 0
    for group in groups:
        size = sum(_tokens(r) for _, _, r in group)
        if budget is not None and size > budget:
            part: list[tuple[int, int, Rollout]] = []
            room = budget
            for place in group:
                if part and _tokens(place[2]) > room:
                    bins.append((part, False))
                    part, room = [], budget
                part.append(place)
                room -= _tokens(place[2])
            bins.append((part, False))
            used = budget
        elif bins and bins[-1][1] and (budget is None or used + size <= budget):
            bins[-1][0].extend(group)
            used += size
        else:
            bins.append((list(group), True))
            used = size
    return [Micro([p[2] for p in b], [p[1] for p in b], [p[0] for p in b], live, whole) for b, whole in bins]
