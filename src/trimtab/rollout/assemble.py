"""Completion and verdict to Segment, Rollout and Group: token in, token out."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trimtab.engines.protocol import Completion
from trimtab.records import I32, Outcome, Rollout, Sampling, Segment, StopReason, Timing
from trimtab.tasks.protocol import Verdict


def segment(prompt: I32, completion: Completion, sampling: Sampling, turn: int = 0) -> Segment:
    """Prompt and response as one sequence: the prompt off the action mask, the sampled ids, log-probs and versions on it."""
    p, n = len(prompt), len(completion.tokens)
    action_mask = np.zeros(p + n, np.bool_)
    action_mask[p:] = True
    behavior_logp = np.zeros(p + n, np.float32)
    behavior_logp[p:] = completion.logp
    versions = np.full(p + n, -1, np.int32)
    versions[p:] = completion.versions
    return Segment(
        tokens=np.concatenate([prompt, completion.tokens]).astype(np.int32),
        action_mask=action_mask,
        behavior_logp=behavior_logp,
        versions=versions,
        turn=np.full(p + n, turn, np.int16),
        sampling=sampling,
        incarnation=completion.incarnation,
        kept=completion.kept,
    )


def rollout(member: int, part: Segment, completion: Completion, verdict: Verdict, verified: float, reward: float | None = None) -> Rollout:
    """One member of a group. ``reward``: what it is rewarded with where that is not the score."""
    return Rollout(
        member=member,
        segments=(part,),
        score=verdict.score,
        reward=reward,
        outcome=verdict.outcome,
        stop=completion.stop,
        timing=Timing(started=completion.started, finished=completion.finished, verified=verified),
        forgetting=completion.forgetting,
        forgetting_source="" if completion.forgetting is None else "swap",
    )


def unseen(completion: Completion, truncated: str) -> Verdict | None:
    """The verdict on a response that no scorer needs to see, if it is one."""
    if completion.stop is StopReason.ABORTED:
        return Verdict(score=float("nan"), outcome=Outcome.ERROR, detail="generation was aborted")
    if completion.stop is StopReason.LENGTH and truncated == "wrong":
        return Verdict(score=0.0, outcome=Outcome.WRONG, detail="cut off at max_new_tokens")
    return None


def members(rollouts: Iterable[Rollout]) -> tuple[Rollout, ...]:
    """The members with a verdict, in order; the others leave their group."""
    return tuple(sorted((r for r in rollouts if r.judged), key=lambda r: r.member))
