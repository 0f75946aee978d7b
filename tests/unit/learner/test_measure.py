"""The numbers of a batch made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from support.updates import group
from trimtab.control.protocol import Notes
from trimtab.learner.measure import measure
from trimtab.learner.micro import Seen
from trimtab.learner.update import UpdateResult
from trimtab.records import Batch, Outcome, Rollout, Sampling, Segment, StopReason
from trimtab.telemetry.metrics import Value
from trimtab.telemetry.reducers import Rate


def rollout(versions: list[int], score: float, outcome: Outcome, stop: StopReason = StopReason.EOS, reward: float | None = None) -> Rollout:
    n = len(versions) + 1
    segment = Segment(
        tokens=np.ones(n, np.int32),
        action_mask=np.arange(n) > 0,
        behavior_logp=np.zeros(n, np.float32),
        versions=np.array([-1, *versions], np.int32),
        turn=np.zeros(n, np.int16),
        sampling=Sampling(),
    )
    return Rollout(member=0, segments=(segment,), score=score, outcome=outcome, stop=stop, reward=reward)


BATCH = Batch(
    number=7,
    version=10,
    groups=(
        group(
            0,
            [
                rollout([8, 8, 9], 1.0, Outcome.CORRECT),
                rollout([9, 9], 0.0, Outcome.WRONG, StopReason.LENGTH, reward=-0.5),
            ],
        ),
        group(1, [rollout([7], 0.0, Outcome.UNPARSEABLE), rollout([10, 10, 10, 10], 0.0, Outcome.TIMEOUT)]),
    ),
)


def result(**changes: object) -> UpdateResult:
    log_ratio_R = np.log([1.0, 2.0, 4.0, 0.5])
    seen = Seen(
        log_ratio_N=np.array([0.1, -0.2, 0.3, 0.0, 0.5, -0.4, 0.0, 0.2, 0.1, -0.1]),
        age_N=np.array([2, 2, 1, 1, 1, 3, 0, 0, 0, 0]),
        log_ratio_R=log_ratio_R,
        entropy_N=np.array([1.0, 2.0, 3.0]),
    )
    fields = {"applied": True, "reason": "", "multiplier": 0.5, "lr": 1e-3, "raw_norm": 3.0, "norm": 1.0, "cosine": 0.25, "seen": seen}
    return UpdateResult(**(fields | changes))  # type: ignore[arg-type]


def one(value: Value) -> float:
    return value.value if isinstance(value, Rate) else value


def test_rollouts() -> None:
    values = {k: one(v) for k, v in measure(BATCH, [result()])[0].values().items()}
    assert {
        k: values[k]
        for k in values
        if k.split("/")[0] in ("reward", "accuracy", "stop", "length", "outcome", "groups", "tokens", "rollouts")
    } == {
        "reward/mean": pytest.approx((1.0 - 0.5) / 4),
        "accuracy/train": 0.25,
        "stop/truncated": 0.25,
        "length/mean": 2.5,
        "length/max": 4,
        "groups/mixed": 0.5,
        "tokens/trained": 10,
        "rollouts/spanning": 1,
    }


def test_age_splits_exactly_into_generation_and_waiting() -> None:
    """The first rollout spans versions 8 and 9; the others were sampled by one version each, and have waited since."""
    metrics, ages = measure(BATCH, [result()])
    values = {k: one(v) for k, v in metrics.values().items()}
    assert values["age/mean"] == pytest.approx((2 + 2 + 1 + 1 + 1 + 3) / 10)
    assert values["age/max"] == 3
    assert values["age/generation"] == pytest.approx((1 + 1) / 10)
    assert values["age/waiting"] == pytest.approx(values["age/mean"] - values["age/generation"])
    assert ages.tokens == {"0": 4, "1": 3, "2": 2, "3": 1}
    assert ages.generation == {"0": 0, "1": 0, "2": 2, "3": 0}


def test_how_far_the_policy_has_moved_at_each_age() -> None:
    _, ages = measure(BATCH, [result()])
    d = np.array([0.3, 0.0, 0.5])
    assert ages.moved["1"] == {
        "tokens": 3,
        "kl": pytest.approx(float(np.mean(np.exp(d) - 1 - d))),
        "ratio_mean": pytest.approx(float(np.exp(d).mean())),
        "log_ratio_abs_mean": pytest.approx(0.8 / 3),
    }
    assert set(ages.moved) == {"0", "1", "2", "3"}


def test_ratios_before_any_cut() -> None:
    values = {k: one(v) for k, v in measure(BATCH, [result()])[0].values().items()}
    w, d = np.array([1.0, 2.0, 4.0, 0.5]), result().seen
    assert d is not None
    assert values["ess/ratio"] == pytest.approx(w.sum() ** 2 / (w**2).sum() / 4)
    assert values["ratio/max"] == pytest.approx(4.0)
    assert values["kl/k1"] == pytest.approx(-d.log_ratio_N.mean())
    assert values["kl/k3"] == pytest.approx(float(np.mean(np.exp(d.log_ratio_N) - 1 - d.log_ratio_N)))
    assert values["entropy/mean"] == 2.0


def test_a_ratio_beyond_every_float_is_large_not_infinite() -> None:
    seen = Seen(log_ratio_N=np.array([2000.0]), age_N=np.array([0]), log_ratio_R=np.array([2000.0]))
    values = measure(BATCH, [result(seen=seen)])[0].values()
    assert one(values["ratio/max"]) == pytest.approx(math.exp(700.0))
    assert one(values["ess/ratio"]) == 1.0
    assert "entropy/mean" not in values


def test_steps_applied_and_skipped_are_told_apart() -> None:
    notes = Notes()
    notes.metric("seq_tis/truncated", 3, 8)
    skipped = result(applied=False, reason="x", multiplier=0.0, raw_norm=9.0, norm=0.0, cosine=None, seen=None, invalid_tokens=5)
    values = {k: one(v) for k, v in measure(BATCH, [result(notes=notes), skipped])[0].values().items()}
    assert values["step/applied"] == 0.5
    assert values["step/multiplier"] == 0.5  # of the applied one
    assert values["step/lr"] == 1e-3
    assert (values["grad/raw_norm"], values["grad/norm"], values["grad/cosine"]) == (9.0, 1.0, 0.25)
    assert values["data/invalid_tokens"] == 5
    assert values["method/seq_tis/truncated"] == pytest.approx(3 / 8)


def test_a_refused_update_that_saw_nothing_still_has_its_rollouts() -> None:
    metrics, ages = measure(BATCH, [result(applied=False, reason="non-finite current log-prob", seen=None)])
    values = metrics.values()
    assert one(values["accuracy/train"]) == 0.25
    assert "ess/ratio" not in values
    assert ages.moved == {}
    assert sum(ages.tokens.values()) == 10
