"""The numbers of one consumed batch: raw ratio quantiles before any cut, ages, lengths, the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trimtab import functional as F
from trimtab.learner.micro import Seen
from trimtab.learner.update import UpdateResult
from trimtab.learner.views import rewards
from trimtab.records import Batch, Outcome, StopReason, equal_rewards
from trimtab.telemetry.metrics import Metrics

CAP = 8.0  # of ess/ratio_truncated: the cut of VCPO's recipes, whatever method weighs
LOG_MAX = 700.0  # exp beyond it is infinite in float64; a ratio is reported as at most e^700


@dataclass(frozen=True, slots=True)
class Ages:
    """Action tokens by age; the part of their age that arose in generation; how far the policy has moved at each age."""

    tokens: dict[str, int]
    generation: dict[str, int]
    moved: dict[str, dict[str, float]]


def measure(batch: Batch, results: Sequence[UpdateResult]) -> tuple[Metrics, Ages]:
    """Everything about a batch that does not depend on how it was scheduled.

    Age splits exactly into generation (version of the rollout's newest token - the token's own) and waiting (version at consumption
    - that of the newest token; for its siblings, in the pool), averaged over action tokens.
    """
    metrics = Metrics()
    seen = [r.seen for r in results if r.seen is not None]
    _rollouts(batch, metrics)
    _ratios(seen, metrics)
    _steps(results, metrics)
    tokens, generation = _ages(batch, metrics)
    return metrics, Ages(tokens, generation, _moved(seen))


def _rollouts(batch: Batch, metrics: Metrics) -> None:
    rollouts = batch.rollouts
    for r in rollouts:
        metrics.put("reward/mean", r.score if r.reward is None else r.reward)
        metrics.put("accuracy/train", r.outcome is Outcome.CORRECT)
        metrics.put("stop/truncated", r.stop is StopReason.LENGTH)
        metrics.put("length/mean", r.actions)
        metrics.put("length/max", r.actions)
    metrics.metric("groups/mixed", sum(not equal_rewards(rewards(g.rollouts)) for g in batch.groups), len(batch.groups))
    metrics.put("tokens/trained", sum(r.actions for r in rollouts))
    metrics.put("rollouts/spanning", sum(r.oldest < r.newest for r in rollouts))


def _ages(batch: Batch, metrics: Metrics) -> tuple[dict[str, int], dict[str, int]]:
    versions = [v for rollout in batch.rollouts if (v := rollout.versions()).size]
    if not versions:
        return {}, {}
    v_N, newest_N = np.concatenate(versions).astype(np.int64), np.concatenate([np.full(v.size, v.max()) for v in versions])
    age_N, generation_N = batch.version - v_N, newest_N - v_N
    n = float(v_N.size)
    metrics.metric("age/mean", float(age_N.sum()), n)
    metrics.metric("age/generation", float(generation_N.sum()), n)
    metrics.metric("age/waiting", float((age_N - generation_N).sum()), n)
    metrics.put("age/max", float(age_N.max()))
    buckets = np.unique(age_N)
    tokens = {str(b): int((age_N == b).sum()) for b in buckets}
    return tokens, {str(b): int(generation_N[age_N == b].sum()) for b in buckets}


def _moved(seen: Sequence[Seen]) -> dict[str, dict[str, float]]:
    if not seen:
        return {}
    age, ratio = np.concatenate([s.age_N for s in seen]), np.concatenate([s.log_ratio_N for s in seen])
    out = {}
    for bucket in np.unique(age):
        d = ratio[age == bucket]
        out[str(int(bucket))] = {
            "tokens": float(d.size),
            "kl": float(F.divergence.k3(torch.from_numpy(d)).mean()),
            "ratio_mean": float(_ratio(d).mean()),
            "log_ratio_abs_mean": float(np.abs(d).mean()),
        }
    return out


def _ratio(log_ratio: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(np.clip(log_ratio, -LOG_MAX, LOG_MAX)))


def _ratios(seen: Sequence[Seen], metrics: Metrics) -> None:
    for s in seen:
        token, sequence = torch.from_numpy(s.log_ratio_N), torch.from_numpy(s.log_ratio_R)
        metrics.metric("kl/k1", float(F.divergence.k1(token).sum()), token.numel())
        metrics.metric("kl/k3", float(F.divergence.k3(token).sum()), token.numel())
        metrics.sample("ratio", _ratio(s.log_ratio_R))
        metrics.sample("ratio_token", _ratio(s.log_ratio_N))
        metrics.put("ess/ratio", F.ess.ess(sequence).ratio)
        metrics.put("ess/ratio_truncated", F.ess.ess(sequence, cap=CAP).ratio)
        if s.entropy_N is not None:
            metrics.metric("entropy/mean", float(s.entropy_N.sum()), s.entropy_N.size)


def _steps(results: Sequence[UpdateResult], metrics: Metrics) -> None:
    for r in results:
        metrics.put("step/applied", r.applied)
        metrics.put("grad/raw_norm", r.raw_norm)
        metrics.put("grad/norm", r.norm)
        metrics.put("step/lr", r.lr)
        if r.applied:
            metrics.put("step/multiplier", r.multiplier)
        if r.step is not None:
            metrics.put("step/moved", r.step.moved)
            metrics.put("step/moved_masters", r.step.moved_masters)
        if r.cosine is not None:
            metrics.put("grad/cosine", r.cosine)
        if r.invalid_tokens:
            metrics.put("data/invalid_tokens", r.invalid_tokens)
        if r.empty_rollouts:
            metrics.put("data/empty_rollouts", r.empty_rollouts)
        for name, (numerator, denominator) in r.notes.metrics.items():
            metrics.metric(name, numerator, denominator)
