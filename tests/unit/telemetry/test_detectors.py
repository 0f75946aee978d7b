"""Detectors: silent in health, loud before reward halves, once an episode, the same after a restart."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from trimtab.telemetry.detectors import Detectors
from trimtab.telemetry.events import Severity
from trimtab.telemetry.metrics import BatchRecord
from trimtab.telemetry.options import DetectorOptions, EssOptions, LengthOptions, TruncationWatchOptions
from trimtab.telemetry.reducers import Rate

TRACES = json.loads((Path(__file__).parent / "traces.json").read_text())
"""Three recorded runs of a 0.1 M-parameter model on chain sum, lag 64, lr 3e-4: two collapse, one stays up. ``fresh`` is the
reward of the rollouts being sampled, which moves 64 batches before that of the rollouts trained on."""


def records(trace):
    length = len(next(iter(trace.values())))
    for t in range(length):
        metrics = {name: float(values[t]) for name, values in trace.items() if name != "fresh"}
        yield BatchRecord(batch=t, version=t, incarnation=0, time=float(t), applied=True, metrics=metrics)


def watch(trace, options=None):
    detectors = Detectors(options or DetectorOptions())
    return [event for record in records(trace) for event in detectors.feed(record)]


def halved(reward):
    """First batch at which the 10-batch mean is below half of its best so far."""
    mean = np.convolve(reward, np.ones(10) / 10, "valid")
    return int(np.flatnonzero(mean < np.maximum.accumulate(mean) / 2)[0]) + 9


def interpolated(reward, ess, kl, seed=0):
    """A trace through 20-batch means of batches 140-300, after a healthy rise."""
    rng = np.random.default_rng(seed)
    centers = np.concatenate([[0, 60, 120], 150 + 20 * np.arange(len(reward))])
    t = np.arange(300)

    def curve(head, values, noise):
        return np.interp(t, centers, [*head, *values]) * rng.lognormal(0, noise, len(t))

    return {
        "reward/mean": np.clip(curve((0.18, 0.5, 0.9), reward, 0.03), 0, 1),
        "ess/ratio": np.clip(curve((0.9, 0.5, 0.8), ess, 0.1), 1 / 64, 1),
        "kl/k3": curve((0.01, 0.02, 0.01), np.maximum(kl, 0.002), 0.3),
        "grad/raw_norm": np.interp(t, [0, 120, 300], [0.3, 0.1, 0.1]) * rng.lognormal(0, 0.3, len(t)),
        "length/mean": np.full(300, 21.0),
        "stop/truncated": np.zeros(300),
        "entropy/mean": np.interp(t, [0, 120, 300], [0.3, 0.05, 0.03]) * rng.lognormal(0, 0.1, len(t)),
        "ratio/p99": np.full(300, 3.0),
    }


COLLAPSES = {
    "s0": (
        (0.95, 0.94, 0.81, 0.59, 0.23, 0.11, 0.10, 0.06),
        (0.86, 0.94, 0.88, 0.72, 0.20, 0.14, 0.08, 0.06),
        (0.01, 0.00, 0.02, 0.05, 0.45, 0.81, 1.10, 0.92),
    ),
    "s1": (
        (0.93, 0.94, 0.95, 0.91, 0.42, 0.01, 0.00, 0.00),
        (0.85, 0.93, 0.89, 0.88, 0.52, 0.13, 0.13, 0.08),
        (0.01, 0.00, 0.01, 0.01, 0.25, 0.90, 1.10, 0.88),
    ),
    "s2": (
        (0.94, 0.93, 0.94, 0.94, 0.85, 0.66, 0.10, 0.07),
        (0.87, 0.95, 0.94, 0.90, 0.84, 0.63, 0.20, 0.13),
        (0.01, 0.00, 0.00, 0.00, 0.02, 0.12, 0.61, 0.83),
    ),
}
HEALTHY = {
    "s0": (
        (0.93, 0.93, 0.96, 0.95, 0.96, 0.95, 0.97, 0.96),
        (0.76, 0.85, 0.94, 0.97, 0.96, 0.99, 0.94, 0.99),
        (0.02, 0.01, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00),
    ),
    "s2": (
        (0.91, 0.92, 0.95, 0.96, 0.96, 0.97, 0.98, 0.98),
        (0.73, 0.84, 0.91, 0.95, 0.95, 0.98, 0.99, 1.00),
        (0.02, 0.01, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00),
    ),
}
"""Reward, ESS and KL of three sequence-TIS and two VCPO runs at lag 64: means of 20 batches from batch 140 on."""


@pytest.mark.parametrize("run", COLLAPSES)
def test_a_collapse_through_the_measured_means_is_announced_before_reward_halves(run):
    trace = interpolated(*COLLAPSES[run])
    alarms = [event for event in watch(trace) if event.name != "norm_spike"]
    assert alarms, "nobody noticed"
    assert 140 < alarms[0].batch < halved(trace["reward/mean"])  # not while the run was still healthy
    assert {event.name for event in alarms} >= {"ess", "kl"}


@pytest.mark.parametrize("run", HEALTHY)
@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_run_is_quiet(run, seed):
    assert {event.name for event in watch(interpolated(*HEALTHY[run], seed=seed))} <= {"norm_spike"}


@pytest.mark.parametrize("name", [name for name in TRACES if name.startswith("sequence TIS")])
def test_recorded_collapses_are_announced_before_the_sampled_reward_halves(name):
    events = [event for event in watch(TRACES[name]) if event.name != "norm_spike"]
    half = halved(TRACES[name]["fresh"])
    assert any(half - 60 < event.batch < half for event in events), (half, events)


def test_the_recorded_healthy_run_is_quiet_but_for_spikes():
    assert {event.name for event in watch(TRACES["VCPO, lag 64, seed 0"])} == {"norm_spike"}


def steady(**changes):
    """A healthy plateau of 200 batches; a change is a function of the batch number."""
    t = np.arange(200.0)
    rng = np.random.default_rng(1)
    plain = {
        "reward/mean": 0.8 + 0 * t,
        "ess/ratio": 0.99 + 0 * t,
        "kl/k3": 0.004 * rng.lognormal(0, 0.3, 200),
        "entropy/mean": 0.2 * rng.lognormal(0, 0.1, 200),
        "grad/raw_norm": 0.1 * rng.lognormal(0, 0.3, 200),
        "length/mean": 200 + rng.normal(0, 5, 200),
        "stop/truncated": rng.binomial(64, 0.02, 200) / 64,
        "ratio/p99": 1.5 + 0 * t,
        "step/moved": 0.9 + 0 * t,
        "step/moved_masters": 1.0 + 0 * t,
    }
    return plain | {name: change(t) for name, change in changes.items()}


def test_collapse_into_never_stopping_is_seen_although_ess_stays_near_one():
    stuck = steady(
        **{
            "stop/truncated": lambda t: np.clip((t - 100) / 40, 0.02, 1),
            "length/mean": lambda t: 200 + 800 * np.clip((t - 100) / 40, 0, 1),
            "reward/mean": lambda t: 0.8 * (1 - np.clip((t - 100) / 40, 0, 1)),
        }
    )
    events = watch(stuck)
    assert {event.name for event in events} == {"truncation", "length"}
    assert max(event.batch for event in events) < halved(stuck["reward/mean"])
    grew = next(event for event in events if event.name == "length")
    assert grew.evidence["mean"] > 2 * grew.evidence["usual"]


@pytest.mark.parametrize(
    ("name", "metric", "change"),
    [
        ("ess", "ess/ratio", lambda t: np.where(t < 120, 0.9, 0.4)),
        ("ess", "ess/ratio", lambda t: np.where(t < 5, 0.9, 0.05)),  # never took off: the floor
        ("ratio_p99", "ratio/p99", lambda t: np.where(t < 120, 1.5, 12.0)),
        ("ratio_p99", "ratio/p99", lambda t: np.where(t == 120, 90.0, 1.5)),
        ("kl", "kl/k3", lambda t: np.where(t < 120, 0.004, 0.2)),
        ("kl", "kl/k3", lambda t: np.where(t < 120, 0.002, 0.05)),  # a jump below the limit
        ("length", "length/mean", lambda t: np.where(t < 120, 200.0, 60.0)),
        ("truncation", "stop/truncated", lambda t: 0.02 + t / 400),  # a slow rise adds up
        ("truncation", "stop/truncated", lambda t: 0.99 + 0 * t),  # no change at all
        ("norm_spike", "grad/raw_norm", lambda t: np.where(t == 120, 0.6, 0.1)),
        ("nonfinite", "grad/norm", lambda t: np.where(t == 120, math.nan, 0.1)),
        ("standstill", "step/moved", lambda t: np.where(t < 120, 0.01, 5e-5)),  # published weights; the masters move
        ("standstill", "step/moved_masters", lambda t: np.where(t < 120, 1.0, 0.02)),
    ],
)
def test_each_detector_fires_on_its_signal_alone_and_shows_the_numbers(name, metric, change):
    events = watch(steady(**{metric: change}))
    assert {event.name for event in events} == {name}
    for event in events:
        assert event.message
        assert event.evidence
        assert event.severity is Severity.WARN


def test_truncation_from_the_start_is_said_in_the_first_batches():
    """Issue 9.8: 99 % of the responses were cut off from the first batch to the last, and nothing was raised."""
    (event,) = watch(steady(**{"stop/truncated": lambda t: 0.99 + 0 * t}))
    assert event.batch == 2
    assert event.message.startswith("99% of the rollouts ran into the token limit, above 50%; raise rollout.max_new_tokens")
    assert watch(steady(**{"stop/truncated": lambda t: 0.49 + 0 * t})) == []
    assert (
        len(watch(steady(**{"stop/truncated": lambda t: 0.49 + 0 * t}), DetectorOptions(truncation=TruncationWatchOptions(limit=0.4)))) == 1
    )


def test_entropy_that_falls_while_reward_is_at_its_best_is_learning():
    fall = {"entropy/mean": lambda t: np.where(t < 100, 0.2, 0.01)}
    assert watch(steady(**fall)) == []
    (event,) = watch(steady(**fall, **{"reward/mean": lambda t: np.where(t < 100, 0.8, 0.5)}))
    assert event.name == "entropy"


def test_one_event_an_episode_and_a_new_one_after_recovery():
    low = steady(**{"ess/ratio": lambda t: np.where((t % 100 > 60) & (t % 100 < 90), 0.2, 0.95)})
    events = watch(low)
    assert [event.name for event in events] == ["ess", "ess"]
    assert 60 < events[0].batch < 90 < 160 < events[1].batch < 190


def test_options_switch_off_and_stop():
    low = steady(**{"ess/ratio": lambda t: np.where(t < 120, 0.9, 0.1)})
    assert watch(low, DetectorOptions(ess=EssOptions(action="off"))) == []
    assert [e.severity for e in watch(low, DetectorOptions(ess=EssOptions(action="stop")))] == [Severity.STOP]


def test_bfloat16_at_a_small_learning_rate_is_no_standstill():
    """1e-6 in weights of 0.02: a step publishes one weight in a hundred anew, and all masters have moved."""
    assert watch(steady(**{"step/moved": lambda t: 0.01 + 0 * t, "step/moved_masters": lambda t: 1.0 + 0 * t})) == []


def test_a_standstill_says_what_stands_still():
    (event,) = watch(
        steady(**{"step/moved": lambda t: 0.0 * t, "step/moved_masters": lambda t: 1.0 + 0 * t, "step/lr": lambda t: 1e-9 + 0 * t})
    )
    assert event.message == (
        "a step changes 0.0000% of the published weights and 100% of the optimizer's: the learning rate is very small for the dtype "
        "that is published"
    )
    assert event.evidence == {"published": 0.0, "masters": 1.0, "lr": 1e-9}


def test_a_batch_without_the_metric_is_ignored():
    detectors = Detectors(DetectorOptions())
    for t in range(100):
        record = BatchRecord(batch=t, version=t, incarnation=0, time=0.0, applied=False, reason="no_signal", metrics={"grad/raw_norm": 0.0})
        assert detectors.feed(record) == []


@pytest.mark.parametrize("cut", [7, 130, 276])
def test_a_run_resumed_from_a_checkpoint_raises_the_same_events(cut):
    trace = TRACES["sequence TIS, lag 64, seed 0"]
    whole = watch(trace)
    first, second = Detectors(DetectorOptions()), Detectors(DetectorOptions())
    events = []
    for record in records(trace):
        if record.batch == cut:
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        events += (first if record.batch < cut else second).feed(record)
    assert events == whole


def test_a_detector_switched_on_at_resume_starts_afresh():
    before = Detectors(DetectorOptions(length=LengthOptions(action="off")))
    for record in records(steady()):
        before.feed(record)
    after = Detectors(DetectorOptions())
    after.load_state_dict(before.state_dict())
    assert "length" not in before.state_dict()
    assert after.state_dict()["ess"] == before.state_dict()["ess"]


def judged(errors, timeouts, asked=40, faults=None, **more):
    """Batches of verdicts, one a place of ``errors``."""
    for t, (e, o) in enumerate(zip(errors, timeouts, strict=True)):
        metrics = {"outcome/error": Rate(e, asked), "outcome/timeout": Rate(o, asked)} if asked else {}
        yield BatchRecord(batch=t, version=t, incarnation=0, time=0.0, applied=True, metrics=metrics, faults=faults or {}, **more)


def test_failing_verdicts_are_told_at_once_with_the_reason():
    detectors = Detectors(DetectorOptions())
    events = [
        e for r in judged([8] * 30, [4] * 30, faults={"error: RuntimeError: boom": 8, "timeout: no verdict": 4}) for e in detectors.feed(r)
    ]
    (event,) = events
    assert (event.name, event.severity, event.batch) == ("verdicts", Severity.WARN, 0)
    assert event.message == "the verifier failed on 30% of 40 responses, 8 errors and 4 timeouts; most often: error: RuntimeError: boom"
    assert event.evidence == {"errors": 8, "timeouts": 4, "asked": 40}


@pytest.mark.parametrize(
    ("errors", "asked", "first"),
    [
        ([2] * 20, 40, None),  # a twentieth is not above the limit
        ([0] * 10 + [12] + [0] * 9, 40, None),  # a moment among many responses
        ([0] * 10 + [40] * 10, 40, 10),
        ([3] * 20, 8, 2),  # three batches make 20 responses
        ([0] * 20, 0, None),  # nothing judged since the last batch
    ],
)
def test_failing_verdicts_count_over_the_window(errors, asked, first):
    detectors = Detectors(DetectorOptions())
    events = [e for r in judged(errors, [0] * len(errors), asked) for e in detectors.feed(r)]
    assert [e.batch for e in events] == ([] if first is None else [first])
