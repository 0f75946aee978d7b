"""What the rewards and denominators of an update are, and how views of its parts become one; ``fill`` makes and fills them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trimtab import functional as F
from trimtab.control.protocol import Recorder, Totals, View
from trimtab.records import Group, Rollout, Segment, equal_rewards


@dataclass(frozen=True, slots=True)
class Valid:
    """The groups of a batch that can be trained on, and what was taken out of them."""

    groups: list[Group]
    tokens: int  # action tokens without a usable behavior log-prob
    rollouts: int  # rollouts that then had no action token left


def drop_invalid(groups: Sequence[Group]) -> Valid:
    """Take action tokens with a non-finite behavior log-prob out of the mask, and rollouts without an action token out of their group.

    Done when the batch is formed, before any denominator is known: a token without a usable log-prob is invalid data, and a rollout
    without a token has no importance ratio, so that it may speak in no effective sample size and in no baseline.
    """
    dropped = empty = 0
    clean = []
    for group in groups:
        rollouts = []
        for rollout in group.rollouts:
            segments = []
            for segment in rollout.segments:
                bad = segment.action_mask & ~np.isfinite(segment.behavior_logp)
                if bad.any():
                    dropped += int(bad.sum())
                    segment = _without(segment, bad)
                segments.append(segment)
            if any(s.action_mask.any() for s in segments):
                rollouts.append(dataclasses.replace(rollout, segments=tuple(segments)))
            else:
                empty += 1
        if rollouts:
            clean.append(dataclasses.replace(group, rollouts=tuple(rollouts)))
    return Valid(clean, dropped, empty) if dropped or empty else Valid(list(groups), 0, 0)


def _without(segment: Segment, bad: np.ndarray) -> Segment:
    kept = segment.kept
    if kept is not None:
        stays = ~bad[segment.action_mask]
        sizes = np.diff(kept.indptr)
        kept = dataclasses.replace(
            kept, indptr=np.concatenate([[0], np.cumsum(sizes[stays])]).astype(np.int64), ids=kept.ids[np.repeat(stays, sizes)]
        )
    return dataclasses.replace(
        segment,
        action_mask=segment.action_mask & ~bad,
        behavior_logp=np.where(bad, np.float32(0), segment.behavior_logp),
        versions=np.where(bad, np.int32(-1), segment.versions),
        kept=kept,
    )


def rewards(rollouts: Iterable[Rollout]) -> np.ndarray:
    """What credit is assigned by: the shaped reward, or the score where nothing shaped it."""
    return np.array([r.score if r.reward is None else r.reward for r in rollouts], dtype=np.float64)


def totals_of(groups: Sequence[Group], max_length: int) -> Totals:
    """The denominators of one update."""
    rollouts = [r for g in groups for r in g.rollouts]
    return Totals(
        rollouts=len(rollouts),
        tokens=sum(r.actions for r in rollouts),
        groups=len(groups),
        max_length=max_length,
        reward_std=spread(torch.from_numpy(rewards(rollouts))),
    )


def spread(reward_R: Tensor) -> float:
    """What ``std = "batch"`` divides by: the unbiased std over all rollouts of the update, 0 where all rewards are equal."""
    return 0.0 if equal_rewards(reward_R.cpu().numpy()) else float(F.advantages.unbiased_std(reward_R))


def leveled(view: View) -> Tensor:
    """``reward_R`` with one value, the first, throughout a group whose rewards are equal up to rounding; so where all of the view are."""
    reward_R = view.reward_R.cpu().numpy().copy()
    group_R = view.group_R.cpu().numpy()
    for members in (np.ones(reward_R.shape, dtype=bool), *(group_R == g for g in np.unique(group_R))):
        if equal_rewards(reward_R[members]):
            reward_R[members] = reward_R[members][:1]
    return torch.from_numpy(reward_R).to(view.reward_R)


def join(views: Sequence[View], recorder: Recorder | None = None) -> View:
    """One view over consecutive micro-batches of an update, a new one. A column that one of them lacks is None. ``recorder``: instead of
    the first one's."""
    recorder = recorder or views[0].recorder
    if len(views) == 1:
        return dataclasses.replace(views[0], recorder=recorder)
    offsets = np.cumsum([0, *[v.score_R.shape[0] for v in views]])
    columns: dict[str, Tensor | None] = {}
    for name in _columns():
        parts = [getattr(v, name) for v in views]
        columns[name] = None if any(x is None for x in parts) else torch.cat(parts)
    columns["rollout_N"] = torch.cat([v.rollout_N + int(o) for v, o in zip(views, offsets, strict=False)])
    return View(**{**vars(views[0]), **columns, "recorder": recorder})


def reorder(view: View, order: np.ndarray) -> View:
    """The view with its rollouts in this order: the new i-th is the old ``order[i]``-th."""
    order_R = torch.from_numpy(order).to(view.rollout_N.device)
    place_R = torch.empty_like(order_R)
    place_R[order_R] = torch.arange(order_R.shape[0], device=order_R.device)
    order_N = torch.argsort(place_R[view.rollout_N], stable=True)
    columns: dict[str, Tensor | None] = {}
    for name in _columns():
        x = getattr(view, name)
        columns[name] = None if x is None else x[order_N if name.endswith("_N") else order_R]
    columns["rollout_N"] = place_R[view.rollout_N][order_N]
    return View(**{**vars(view), **columns})


def _columns() -> list[str]:
    return [f.name for f in dataclasses.fields(View) if f.name.endswith(("_N", "_R"))]
