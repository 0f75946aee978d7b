"""Batches that no method may be broken by."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from support.tiny import tiny_policy
from support.updates import make_batch, map_rollouts, map_segments
from trimtab.records import Batch, Group, Rollout, Segment


def small_model() -> nn.Module:
    """One layer, so that some thousand updates take seconds."""
    return tiny_policy(hidden=16, intermediate=24, layers=1).model


def hostile_batches() -> dict[str, Batch]:
    """By what is wrong with them. Rewards are mixed within groups unless the name says otherwise."""
    model = small_model()
    base = make_batch(model)

    def every(f: Callable[[Segment], Segment]) -> Batch:
        return _replaced(base, tuple(map_segments(g, f) for g in base.groups))

    def groups(f: Callable[[int, Group], Group]) -> Batch:
        return _replaced(base, tuple(f(i, g) for i, g in enumerate(base.groups)))

    rng = np.random.default_rng(0)
    return {
        "ordinary": base,
        "another": make_batch(model, seed=1, number=1),
        "far above": every(lambda s: _shifted(s, -1e4)),  # log-ratio +1e4 on every token
        "far below": every(lambda s: _shifted(s, 1e4)),
        "both ways": every(lambda s: _shifted(s, rng.choice((-1e4, -30.0, 0.0, 30.0, 1e4), len(s.tokens)))),
        "nan behavior": every(lambda s: _where(s, rng.random(len(s.tokens)) < 0.3, math.nan)),
        "-inf behavior": every(lambda s: _where(s, rng.random(len(s.tokens)) < 0.3, -math.inf)),
        "nan off the actions": every(lambda s: _where(s, ~s.action_mask, math.nan)),
        "no token of a group": groups(lambda i, g: map_segments(g, _unusable) if i == 0 else g),
        "no token but one group's": groups(lambda i, g: g if i == 3 else map_segments(g, _unusable)),
        "no token at all": every(_unusable),
        "one rollout without a token": groups(lambda i, g: map_rollouts(g, lambda r: _all(r, _unusable) if r.member == 1 else r)),
        "single members": groups(lambda i, g: dataclasses.replace(g, rollouts=g.rollouts[:1])),
        "equal scores": make_batch(model, [[1.0] * 4, [0.0] * 4, [0.5] * 4]),
        "equal scores, far off": _replaced(
            base, tuple(map_rollouts(map_segments(g, lambda s: _shifted(s, -300.0)), _scored(1.0)) for g in base.groups)
        ),
        "huge scores": groups(lambda i, g: map_rollouts(g, lambda r: dataclasses.replace(r, score=1e6 * (r.member - 1)))),
        "one group": _replaced(base, base.groups[:1]),
        "one token": make_batch(model, [[1.0, 0.0]], seed=5),
    }


def broken_model() -> nn.Module:
    """A model whose log-probs are NaN."""
    model = small_model()
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if n.endswith("lm_head.weight"))[2] = math.nan
    return model


def _replaced(batch: Batch, groups: tuple[Group, ...]) -> Batch:
    return dataclasses.replace(batch, groups=groups)


def _shifted(s: Segment, by: float | np.ndarray) -> Segment:
    return dataclasses.replace(s, behavior_logp=np.where(s.action_mask, s.behavior_logp + by, 0).astype(np.float32))


def _where(s: Segment, at: np.ndarray, value: float) -> Segment:
    return dataclasses.replace(s, behavior_logp=np.where(at, value, s.behavior_logp).astype(np.float32))


def _unusable(s: Segment) -> Segment:
    return _where(s, s.action_mask, math.nan)


def _all(r: Rollout, f: Callable[[Segment], Segment]) -> Rollout:
    return dataclasses.replace(r, segments=tuple(f(s) for s in r.segments))


def _scored(score: float) -> Callable[[Rollout], Rollout]:
    return lambda r: dataclasses.replace(r, score=score)
