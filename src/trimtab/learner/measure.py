"""The numbers of one consumed batch: raw ratio quantiles before any cut, ages, lengths, outcomes, the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trimtab import functional as F
from trimtab.learner.update import Seen, UpdateResult
from trimtab.records import Batch, Outcome, StopReason

Rate = tuple[float, float]  # numerator, denominator


@dataclass(frozen=True, slots=True)
class Measured:
    """Scalars, rates, and per-age buckets of one batch."""

    scalars: dict[str, float]
    rates: dict[str, Rate]
    ages: dict[str, int]  # age -> action tokens
    by_age: dict[str, dict[str, float]]


def measure(batch: Batch, entered: Sequence[int], results: Sequence[UpdateResult]) -> Measured:
    """Everything about a batch that does not depend on how it was scheduled.

    ``entered[g]``: learner version when the last member of group g completed, so that age splits exactly into generation
    (entered - token's version) and waiting (version at consumption - entered), averaged over action tokens.
    """
    scalars: dict[str, float] = {}
    rates: dict[str, Rate] = {}
    _rollouts(batch, scalars, rates)
    ages, by_age = _ages(batch, entered, results, scalars, rates)
    seen = [r.seen for r in results if r.seen is not None]
    if seen:
        _ratios(seen, scalars, rates)
    _steps(results, scalars, rates)
    return Measured(scalars, rates, ages, by_age)


def _rollouts(batch: Batch, scalars: dict[str, float], rates: dict[str, Rate]) -> None:
    rollouts = batch.rollouts
    n = float(len(rollouts))
    lengths = np.array([r.actions for r in rollouts])
    rates["reward/mean"] = (float(sum(r.score if r.reward is None else r.reward for r in rollouts)), n)
    rates["accuracy/train"] = (float(sum(r.outcome is Outcome.CORRECT for r in rollouts)), n)
    rates["stop/truncated"] = (float(sum(r.stop is StopReason.LENGTH for r in rollouts)), n)
    for outcome in Outcome:
        rates[f"outcome/{outcome.value}"] = (float(sum(r.outcome is outcome for r in rollouts)), n)
    rates["groups/mixed"] = (float(sum(np.ptp(g.scores) > 0 for g in batch.groups)), float(len(batch.groups)))
    rates["length/mean"] = (float(lengths.sum()), n)
    scalars["length/max"] = float(lengths.max(initial=0))
    scalars["tokens/trained"] = float(lengths.sum())
    scalars["rollouts/spanning"] = float(sum(r.oldest < r.newest for r in rollouts))


def _ages(
    batch: Batch, entered: Sequence[int], results: Sequence[UpdateResult], scalars: dict[str, float], rates: dict[str, Rate]
) -> tuple[dict[str, int], dict[str, dict[str, float]]]:
    generation = waiting = tokens = 0.0
    oldest = 0
    counts: dict[int, int] = {}
    for group, e in zip(batch.groups, entered, strict=True):
        for rollout in group.rollouts:
            versions = rollout.versions()
            if not versions.size:
                continue
            # A worker may hold a version the learner has published but the pool's clock has not seen: clamp, as the theorem does.
            entry = max(e, int(versions.max()))
            generation += float((entry - versions).sum())
            waiting += float((batch.version - entry) * versions.size)
            tokens += versions.size
            oldest = max(oldest, batch.version - int(versions.min()))
            for age, count in zip(*np.unique(batch.version - versions, return_counts=True), strict=True):
                counts[int(age)] = counts.get(int(age), 0) + int(count)
    rates["age/generation"], rates["age/waiting"] = (generation, tokens), (waiting, tokens)
    rates["age/mean"] = (generation + waiting, tokens)
    scalars["age/max"] = float(oldest)
    by_age: dict[str, dict[str, float]] = {}
    seen = [r.seen for r in results if r.seen is not None]
    if seen:
        age = np.concatenate([s.age_N for s in seen])
        ratio = np.concatenate([s.log_ratio_N for s in seen])
        for bucket in np.unique(age):
            d = ratio[age == bucket]
            by_age[str(int(bucket))] = {
                "tokens": float(d.size),
                "kl": float(F.divergence.k3(torch.from_numpy(d)).mean()),
                "ratio_mean": float(np.exp(np.clip(d, -20, 20)).mean()),
                "log_ratio_abs_mean": float(np.abs(d).mean()),
            }
    return {str(k): v for k, v in sorted(counts.items())}, by_age


def _ratios(seen: Sequence[Seen], scalars: dict[str, float], rates: dict[str, Rate]) -> None:
    token = torch.from_numpy(np.concatenate([s.log_ratio_N for s in seen]))
    sequence = torch.from_numpy(np.concatenate([s.log_ratio_R for s in seen]))
    n = float(token.numel())
    rates["kl/k1"] = (float(F.divergence.k1(token).sum()), n)
    rates["kl/k3"] = (float(F.divergence.k3(token).sum()), n)
    for name, q in (("ratio/p01", 0.01), ("ratio/p50", 0.5), ("ratio/p99", 0.99), ("ratio/max", 1.0)):
        scalars[name] = float(np.exp(np.clip(np.quantile(sequence.numpy(), q), -700, 700)))
    scalars["ratio/token_p99"] = float(np.exp(np.clip(np.quantile(token.numpy(), 0.99), -700, 700))) if n else 1.0
    scalars["ess/ratio"] = F.ess.ess(sequence).ratio
    scalars["ess/ratio_truncated"] = F.ess.ess(sequence, cap=8.0).ratio
    entropies = [s.entropy_N for s in seen if s.entropy_N is not None]
    if entropies:
        entropy = np.concatenate(entropies)
        rates["entropy/mean"] = (float(entropy.sum()), float(entropy.size))


def _steps(results: Sequence[UpdateResult], scalars: dict[str, float], rates: dict[str, Rate]) -> None:
    last = results[-1]
    scalars["grad/raw_norm"], scalars["grad/norm"] = last.raw_norm, last.norm
    if last.cosine is not None:
        scalars["grad/cosine"] = last.cosine
    scalars["step/multiplier"], scalars["step/lr"] = last.multiplier, last.lr
    rates["step/applied"] = (float(sum(r.applied for r in results)), float(len(results)))
    invalid = sum(r.invalid_tokens for r in results)
    if invalid:
        scalars["data/invalid_tokens"] = float(invalid)
    for result in results:
        for name, (numerator, denominator) in result.notes.metrics.items():
            n, d = rates.get(name, (0.0, 0.0))
            rates[name] = (n + numerator, d + denominator)


def quotients(rates: Mapping[str, Rate]) -> dict[str, float]:
    """Rates as numbers, where they have a denominator."""
    return {name: n / d for name, (n, d) in rates.items() if d}
