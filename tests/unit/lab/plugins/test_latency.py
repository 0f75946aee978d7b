"""The slowed engine: what it draws, what it says, how long it takes, what it holds."""

from __future__ import annotations

import time

import numpy as np
import pytest

from support.tiny import tiny_folder
from trimtab.engines.checkpoint import Policy, load_policy
from trimtab.engines.options import TorchEngineOptions
from trimtab.engines.protocol import Completion, Engine, Request
from trimtab.engines.scripted import ScriptedEngine
from trimtab.engines.torch_engine import TorchEngine
from trimtab.lab.plugins.latency import LatencyEngineOptions
from trimtab.lab.plugins.latency_engine import LatencyEngine
from trimtab.records import Sampling, TrimtabError


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load_policy(tiny_folder(tmp_path_factory.mktemp("model")))


def request(i: int, tokens: int = 6) -> Request:
    return Request(id=i, prompt=np.array([1, 2, 3], np.int32), max_new_tokens=tokens, sampling=Sampling(), key=2**63 + 7 * i)


def drain(engine: Engine, n: int) -> tuple[list[Completion], int]:
    """Completions in order, and decode steps."""
    out: list[Completion] = []
    steps = 0
    while len(out) < n:
        out += engine.step()
        steps += 1
        assert steps < 10_000
    return out, steps


def test_draws() -> None:
    o = LatencyEngineOptions(slowness=1.0, rollout_s=0.05, rollout_p99_s=0.5)
    keys = range(4000)
    hold = np.array([o.hold(k) for k in keys])
    assert np.median(hold) == pytest.approx(0.05, rel=0.08)
    assert np.quantile(hold, 0.99) == pytest.approx(0.5, rel=0.25)
    speed = np.array([o.speed(k) for k in keys])
    assert speed.max() == 1.0
    assert np.mean(speed == 1.0) == pytest.approx(0.5, abs=0.04)
    assert abs(np.corrcoef(np.log(hold), speed)[0, 1]) < 0.06  # of streams of their own
    assert o.hold(2**64 - 1) > 0
    plain = LatencyEngineOptions()
    assert (plain.hold(3), plain.speed(3)) == (0.0, 1.0)
    assert LatencyEngineOptions(rollout_s=0.05).hold(3) == 0.05
    for bad in ({"rollout_p99_s": 0.5}, {"rollout_s": 0.5, "rollout_p99_s": 0.1}):
        with pytest.raises(TrimtabError, match=r"engine\.rollout_p99_s"):
            LatencyEngineOptions(**bad)  # type: ignore[arg-type]


def test_slow_rows_say_the_same(policy: Policy) -> None:
    """A swap in between included: a row that does not take its token leaves no trace."""
    weights = {name: p.detach() * 1.5 for name, p in policy.model.named_parameters()}
    said = []
    for options in (TorchEngineOptions(slots=3), LatencyEngineOptions(slots=3, slowness=1.0)):
        engine = TorchEngine(policy, options)
        for i in range(9):
            engine.submit(request(i))
        done, steps = drain(engine, 9)
        said.append({c.id: (c.tokens.tolist(), np.round(c.logp, 4).tolist()) for c in done})
        if isinstance(options, LatencyEngineOptions):
            assert steps > 25
            order = [c.id for c in done]
            assert order != sorted(order)
    assert said[0] == said[1]

    slow = TorchEngine(policy, LatencyEngineOptions(slots=2, slowness=2.0))
    slow.submit(request(0, 20))
    for _ in range(3):
        slow.step()
    slow.stage(1, 0, weights)
    slow.commit(1)
    (done,), _ = drain(slow, 1)
    assert set(done.versions.tolist()) <= {0, 1}


def test_how_many_steps_a_slow_row_takes(policy: Policy) -> None:
    options = LatencyEngineOptions(slots=1, slowness=1.0)
    for i in range(6):
        engine = TorchEngine(policy, options)
        engine.submit(request(i))
        (done,), steps = drain(engine, 1)
        assert steps == int(np.ceil(len(done.tokens) / options.speed(request(i).key) - 1e-9))


def test_held_back_until_its_time_and_never_more_than_slots() -> None:
    options = LatencyEngineOptions(slots=2, rollout_s=0.03)
    engine = LatencyEngine(ScriptedEngine(), options)  # its own slots are many
    assert engine.slots == 64
    engine = LatencyEngine(ScriptedEngine(options=ScriptedEngine().options.model_copy(update={"slots": 2})), options)
    begun = time.perf_counter()
    for i in range(5):
        engine.submit(request(i, 1))
    out: list[Completion] = []
    while len(out) < 5:
        out += engine.step()
        assert engine.running <= 2
    assert time.perf_counter() - begun >= 3 * 0.03  # three rounds of two slots
    assert sorted(c.id for c in out) == list(range(5))
    assert all(c.finished >= c.started + 0.025 for c in out)
    assert engine.running == 0
    assert engine.step() == []


def test_a_floor_under_each_step() -> None:
    engine = LatencyEngine(ScriptedEngine(), LatencyEngineOptions(step_s=0.02))
    engine.submit(request(0, 3))
    begun = time.perf_counter()
    drain(engine, 1)
    assert time.perf_counter() - begun >= 0.06
    begun = time.perf_counter()
    assert engine.step() == []  # nothing to decode, nothing to wait for
    assert time.perf_counter() - begun < 0.02


def test_cancelled_wherever_it_is() -> None:
    inner = ScriptedEngine(options=ScriptedEngine().options.model_copy(update={"slots": 2}))
    engine = LatencyEngine(inner, LatencyEngineOptions(rollout_s=0.03))
    for i in range(4):
        engine.submit(request(i, 1 if i == 0 else 50))
    engine.step()  # 0 is held back, 1 decodes, 2 and 3 wait
    for i in (0, 1, 2):
        engine.cancel(i)
    assert engine.running == 0
    done, _ = drain(engine, 1)
    assert [c.id for c in done] == [3]
    engine.submit(request(9))
    engine.close()
    assert engine.step() == []
