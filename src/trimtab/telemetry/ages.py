"""How old the trained tokens were, where the age arose, and how far the policies had drifted apart at each age.

With v the version that sampled a token, n the version of the newest token of its rollout and c the learner's version when the
batch was formed:  age c - v  =  generation (n - v)  +  waiting (c - n).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.records import Rollout
from trimtab.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Ages:
    """Columns of the action tokens of a batch, in rollout order."""

    age_N: npt.NDArray[np.int64]
    generation_N: npt.NDArray[np.int64]
    spanning: int  # rollouts whose tokens come from two or more versions

    @staticmethod
    def of(rollouts: Sequence[Rollout], now: int) -> Ages:
        """Ages at consumption by a learner that stands at version ``now``."""
        columns = [r.versions().astype(np.int64) for r in rollouts]
        columns = [v for v in columns if v.size]
        if not columns:
            empty = np.zeros(0, dtype=np.int64)
            return Ages(empty, empty, 0)
        return Ages(
            age_N=now - np.concatenate(columns),
            generation_N=np.concatenate([v.max() - v for v in columns]),
            spanning=sum(int(v.min() < v.max()) for v in columns),
        )

    def histogram(self) -> dict[str, int]:
        """Tokens by exact age."""
        return _by_age(self.age_N, np.ones_like(self.age_N))

    def generation(self) -> dict[str, int]:
        """For the tokens of each age, the sum of the part that arose during generation."""
        return _by_age(self.age_N, self.generation_N)

    def record(self, metrics: Metrics) -> None:
        """Put ``age/*`` and ``rollouts/spanning``."""
        count = float(self.age_N.size)
        total, generation = float(self.age_N.sum()), float(self.generation_N.sum())
        metrics.metric("age/mean", total, count)
        metrics.metric("age/generation", generation, count)
        metrics.metric("age/waiting", total - generation, count)
        metrics.put("rollouts/spanning", self.spanning)
        if self.age_N.size:
            metrics.put("age/max", float(self.age_N.max()))

    def drift(self, log_ratio_N: npt.NDArray[np.float64]) -> dict[str, dict[str, float]]:
        """Per bucket of age: tokens, mean k3, mean ratio and mean absolute log-ratio of current over behavior policy."""
        log_ratio_N = np.asarray(log_ratio_N, dtype=np.float64)
        if log_ratio_N.shape != self.age_N.shape:
            raise ValueError(f"log_ratio_N has shape {log_ratio_N.shape}, the batch has {self.age_N.size} action tokens")
        with np.errstate(over="ignore", invalid="ignore"):
            ratio_N = np.exp(log_ratio_N)
            k3_N = ratio_N - 1.0 - log_ratio_N
        ages, index_N = np.unique(self.age_N, return_inverse=True)
        labels = [bucket(int(a)) for a in ages]
        rows = {}
        for label in dict.fromkeys(labels):  # ages are sorted, so buckets are
            at = np.array([other == label for other in labels])[index_N]
            rows[label] = {
                "tokens": float(at.sum()),
                "kl": float(k3_N[at].mean()),
                "ratio_mean": float(ratio_N[at].mean()),
                "log_ratio_abs_mean": float(np.abs(log_ratio_N[at]).mean()),
            }
        return rows


def bucket(age: int) -> str:
    """0, 1, 2, 3-4, 5-8, 9-16, ...: as many tokens in a bucket as its width allows, few buckets at any lag."""
    if age <= 2:
        return str(age)
    high = 1 << (age - 1).bit_length()
    return f"{high // 2 + 1}-{high}"


def lower_edge(label: str) -> int:
    """The smallest age of a bucket."""
    return int(label.split("-")[0])


def _by_age(age_N: npt.NDArray[np.int64], weight_N: npt.NDArray[np.int64]) -> dict[str, int]:
    ages, index_N = np.unique(age_N, return_inverse=True)
    sums = np.zeros(ages.size, dtype=np.int64)
    np.add.at(sums, index_N, weight_N)
    return {str(int(a)): int(s) for a, s in zip(ages, sums, strict=True)}
