"""Forgetting scores from the learner: interrupted rollouts, scored under its weights of now when they have arrived.

Our substitute where the engine does not score again at a swap: the learner's policy is newer than the one that finished the rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from trimtab.config.run import RunConfig
from trimtab.engines.forgetting import Phi, forgetting
from trimtab.learner.packing import pack
from trimtab.learner.passes import PackedModel
from trimtab.records import F32, Group, Rollout

Rescore = Callable[[Sequence[Group]], list[Group]]


def rescorer(config: RunConfig, model: PackedModel) -> Rescore | None:
    """What fills in the scores that the run's methods want of the learner; None where they want none."""
    wanted = config.rescoring
    if wanted is None or wanted.source != "learner":
        return None
    return lambda groups: [replace(g, rollouts=_rescored(g.rollouts, model, wanted.phi)) for g in groups]


def _rescored(rollouts: Sequence[Rollout], model: PackedModel, phi: Phi) -> tuple[Rollout, ...]:
    """One forward over those whose tokens span versions and that have no score yet."""
    lacking = [r for r in rollouts if r.forgetting is None and r.oldest < r.newest]
    if not lacking:
        return tuple(rollouts)
    logp_N = model.score(pack(lacking, device=model.device, dtype=model.dtype)).float().cpu().numpy()
    parts = np.split(logp_N, np.cumsum([r.actions for r in lacking])[:-1])
    scored = {r.member: _with_score(r, logp, phi) for r, logp in zip(lacking, parts, strict=True)}
    return tuple(scored.get(r.member, r) for r in rollouts)


def _with_score(rollout: Rollout, logp: F32, phi: Phi) -> Rollout:
    prefix = rollout.versions() < rollout.newest
    behavior = np.concatenate([s.behavior_logp[s.action_mask] for s in rollout.segments])
    return replace(rollout, forgetting=forgetting(behavior[prefix], logp[prefix], phi), forgetting_source="learner")
