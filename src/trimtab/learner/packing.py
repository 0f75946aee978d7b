"""Rollouts laid end to end: one row a token, no padding, positions restarting with each segment.

A segment enters the model up to the token *before* its last action token: later tokens neither predict an action nor are seen
by one. The hidden state at row t - 1 predicts the action token t. Rollouts lie in the packed tensor in ascending order of
length, so that equal lengths are neighbors (``layout.py``); everything a method sees is in rollout order.

Dimension suffixes beside those of ``records``: ``_P`` packed rows, ``_H`` action tokens in packed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from trimtab.functional.logprobs import KeptSets
from trimtab.learner.layout import BlockLayout
from trimtab.records import Rollout, Segment, TrimtabError


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A packed batch of R rollouts. ``x_N = x_H[to_N]`` and ``x_H = x_N[to_H]`` translate between the two orders."""

    rollouts: tuple[Rollout, ...] = field(repr=False)
    device: torch.device
    # the model's input, packed
    tokens_P: Tensor
    positions_P: Tensor
    segments: BlockLayout  # blocks of attention
    rows: BlockLayout  # blocks of the per-rollout products; numbers rollouts in packed order
    packed_R: Tensor  # rollout -> its number in packed order
    # action tokens, packed order
    predict_H: Tensor  # row whose hidden state predicts the token
    actions: BlockLayout  # blocks of action tokens by rollout, in packed order
    targets_H: Tensor
    temperature_H: Tensor | None  # None: 1 everywhere
    kept_H: KeptSets | None
    uncut_H: Tensor | None  # rows of kept_H whose set is the whole vocabulary; None: there is none
    to_N: Tensor
    to_H: Tensor
    # action tokens, rollout order: the columns of the View
    targets_N: Tensor
    rollout_N: Tensor
    behavior_N: Tensor
    version_N: Tensor
    turn_N: Tensor
    reward_N: Tensor | None
    length_R: Tensor


def pack(rollouts: Sequence[Rollout], *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Packed:
    """Lay ``rollouts`` end to end on ``device``; ``dtype`` is that of the columns of log-probs and rewards.

    Segments and rollouts without an action token take no rows. A segment whose sampling was cut carries its kept sets; one cut
    by ``allowed`` alone may leave them out, since they are the same at every token.

    Raises:
        TrimtabError: there is no action token at all.
    """
    device = torch.device(device)
    parts = [[s for s in r.segments if s.actions] for r in rollouts]
    inputs = [[int(np.flatnonzero(s.action_mask)[-1]) for s in p] for p in parts]
    rows_R = [sum(lengths) for lengths in inputs]
    order = sorted(range(len(rollouts)), key=lambda i: rows_R[i])
    if not any(rows_R):
        raise TrimtabError(f"pack: none of the {len(rollouts)} rollouts has an action token; a batch needs at least one")

    tokens, positions, segment_rows, predict = [], [], [], []
    start = 0
    for i in order:
        for s, n in zip(parts[i], inputs[i], strict=True):
            tokens.append(s.tokens[:n])
            positions.append(np.arange(n))
            predict.append(start + np.flatnonzero(s.action_mask) - 1)
            segment_rows.append(n)
            start += n

    actions = np.array([sum(s.actions for s in p) for p in parts], dtype=np.int64)
    first_N = np.concatenate([[0], np.cumsum(actions)])
    to_H = np.concatenate([np.arange(first_N[i], first_N[i + 1]) for i in order])
    flat = [s for p in parts for s in p]

    def column(name: str, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.concatenate([getattr(s, name)[s.action_mask] for s in flat])).to(device, dtype)

    def index(values: list[np.ndarray] | np.ndarray) -> Tensor:
        x = np.concatenate(values) if isinstance(values, list) else values
        return torch.from_numpy(x.astype(np.int64)).to(device)

    to_H_t = index(to_H)
    targets_N = column("tokens", torch.int64)
    temperature = np.concatenate([np.full(s.actions, s.sampling.temperature) for s in flat])[to_H]
    kept, uncut = _kept([s for i in order for s in parts[i]])
    rewards = any(s.reward is not None for s in flat)
    zero = [np.zeros(s.actions, np.float32) if s.reward is None else s.reward[s.action_mask] for s in flat]
    return Packed(
        rollouts=tuple(rollouts),
        device=device,
        tokens_P=index(tokens),
        positions_P=index(positions),
        segments=BlockLayout(segment_rows, device),
        rows=BlockLayout([rows_R[i] for i in order], device),
        packed_R=index(np.argsort(order)),
        predict_H=index(predict),
        actions=BlockLayout(actions[order].tolist(), device),
        targets_H=targets_N[to_H_t],
        temperature_H=None if (temperature == 1.0).all() else torch.from_numpy(temperature).to(device),
        kept_H=None if kept is None else KeptSets(index(kept[0]), index(kept[1])),
        uncut_H=None if uncut is None else torch.from_numpy(uncut).to(device),
        to_N=index(np.argsort(to_H)),
        to_H=to_H_t,
        targets_N=targets_N,
        rollout_N=index(np.repeat(np.arange(len(rollouts)), actions)),
        behavior_N=column("behavior_logp", dtype),
        version_N=column("versions", torch.int64),
        turn_N=column("turn", torch.int64),
        reward_N=torch.from_numpy(np.concatenate(zero)).to(device, dtype) if rewards else None,
        length_R=index(actions),
    )


def _kept(segments: Sequence[Segment]) -> tuple[tuple[np.ndarray, np.ndarray] | None, np.ndarray | None]:
    """(indptr, ids) of the kept sets over the action tokens of ``segments``, and which tokens have none; (None, None): none has."""
    counts, ids, uncut = [], [], []
    for s in segments:
        if s.kept is not None:
            counts.append(np.diff(s.kept.indptr))
            ids.append(s.kept.ids)
        elif s.sampling.allowed is not None:
            allowed = np.array(s.sampling.allowed, dtype=np.int64)
            counts.append(np.full(s.actions, allowed.size))
            ids.append(np.tile(allowed, s.actions))
        else:
            counts.append(np.zeros(s.actions, dtype=np.int64))
        uncut.append(np.full(s.actions, s.kept is None and s.sampling.allowed is None))
    if not ids:
        return None, None
    free = np.concatenate(uncut)
    return (np.concatenate([[0], np.cumsum(np.concatenate(counts))]), np.concatenate(ids)), free if free.any() else None
