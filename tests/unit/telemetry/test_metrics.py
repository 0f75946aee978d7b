"""Names, collection and the record of a batch."""

import json
import math

import numpy as np
import pytest

from trimtab.control.protocol import Recorder
from trimtab.records import Decision
from trimtab.telemetry.metrics import BatchRecord, Metrics
from trimtab.telemetry.names import KNOWN, TIME_SHARES, declared
from trimtab.telemetry.reducers import Rate


def record(**fields):
    defaults = {"batch": 3, "version": 2, "incarnation": 0, "time": 1.5, "applied": True, "metrics": {}}
    return BatchRecord(**(defaults | fields))


def test_an_undeclared_name_is_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match="'reward/men' is not declared; did you mean 'reward/mean'"):
        declared(["reward/mean", "reward/men"])
    with pytest.raises(ValueError, match="not declared"):
        Metrics().put("grad/raw-norm", 1.0)


def test_every_metric_says_what_it_is():
    for metric in KNOWN.values():
        assert metric.unit, metric.name
        assert metric.meaning, metric.name
    assert {"time/wait", "time/other"} <= set(TIME_SHARES)


def test_rates_scalars_and_quantiles_come_out_by_name():
    metrics = Metrics()
    metrics.metric("reward/mean", 5, 8)
    metrics.metric("reward/mean", 1, 8)
    metrics.put("step/multiplier", 0.5)
    metrics.put("step/multiplier", 1.0)
    metrics.put("grad/raw_norm", 1.0)
    metrics.put("grad/raw_norm", 3.0)
    metrics.put("grad/raw_norm", 2.0)
    metrics.put("time/wait", 0.25)
    metrics.put("time/wait", 0.5)
    ratios = np.exp(np.linspace(-2, 2, 101))
    metrics.sample("ratio", ratios)
    got = metrics.values()
    assert got["reward/mean"] == Rate(6, 16)
    assert got["step/multiplier"] == Rate(1.5, 2)
    assert got["grad/raw_norm"] == 3.0
    assert got["time/wait"] == 0.75
    assert [got[f"ratio/{q}"] for q in ("p01", "p50", "p99", "max")] == [*np.quantile(ratios, [0.01, 0.5, 0.99]), ratios.max()]
    assert "ratio/token_p99" not in got


def test_what_methods_emit_on_their_own_is_a_rate_under_method():
    def method(recorder: Recorder) -> None:
        recorder.metric("seq_mis/masked", 3, 64)
        recorder.metric("opob/baseline", 0.5, 2)

    class Both(Metrics):
        def note(self, decision: Decision) -> None: ...

    metrics = Both()
    method(metrics)
    assert metrics.values() == {"method/seq_mis/masked": Rate(3, 64), "opob/baseline": Rate(0.5, 2)}
    with pytest.raises(ValueError, match=r"'grad/raw_norm' is a max, not a rate"):
        metrics.metric("grad/raw_norm", 1, 2)


def test_the_order_in_which_updates_tell_of_theirs_changes_no_bit():
    rng = np.random.default_rng(0)
    told = rng.lognormal(size=30)
    forward, backward = Metrics(), Metrics()
    for metrics, order in ((forward, told), (backward, told[::-1])):
        for x in order:
            metrics.metric("kl/k3", float(x), 1 + float(x) % 2)
            metrics.put("age/max", float(x))
            metrics.put("time/forward", float(x))
            metrics.sample("ratio", [x, 1 / x])
    assert forward.values() == backward.values()


def test_a_quantile_taken_elsewhere_is_taken_once():
    metrics = Metrics()
    metrics.extend({"ratio/p99": 4.0, "length/max": 7.0}, {"reward/mean": (1, 2)})
    assert metrics.values() == {"ratio/p99": 4.0, "length/max": 7.0, "reward/mean": Rate(1, 2)}
    with pytest.raises(ValueError, match="two do not make one"):
        metrics.put("ratio/p99", 5.0)
    with pytest.raises(ValueError, match="no declared quantile"):
        metrics.sample("lengths", [1.0])


def test_the_record_is_json_with_rates_as_pairs_and_null_for_what_is_not_finite():
    r = record(
        metrics={"reward/mean": Rate(3, 4), "grad/raw_norm": math.nan, "kl/k3": Rate(math.inf, 10)},
        ages={"0": 3, "2": 1},
        by_age={"2": {"tokens": 1.0, "kl": -math.inf}},
    )
    assert sorted(r.nonfinite()) == ["by_age 2 kl", "grad/raw_norm", "kl/k3"]
    line = json.loads(json.dumps(r.to_json(), allow_nan=False))
    assert line["metrics"] == {"reward/mean": [3, 4], "grad/raw_norm": None, "kl/k3": [None, 10]}
    assert line["by_age"] == {"2": {"tokens": 1.0, "kl": None}}
    assert line["ages"] == {"0": 3, "2": 1}
    assert set(line) >= {"batch", "version", "incarnation", "time", "applied", "reason"}


def test_a_value_is_one_finite_number_or_none():
    r = record(metrics={"reward/mean": Rate(3, 4), "kl/k3": Rate(0, 0), "grad/norm": math.inf})
    assert r.value("reward/mean") == 0.75
    assert r.value("kl/k3") is None
    assert r.value("grad/norm") is None
    assert r.value("entropy/mean") is None
