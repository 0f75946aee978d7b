"""The scripted engine behaves like an engine: places, one token a step, versions, publications."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from trimtab import keyed
from trimtab.engines.digest import weights_digest
from trimtab.engines.options import ScriptedEngineOptions
from trimtab.engines.protocol import Completion, Request
from trimtab.engines.scripted import ScriptedEngine
from trimtab.records import Sampling, StopReason, TrimtabError

WEIGHTS = {"w": torch.arange(3.0)}


def request(i: int, new: int = 4, stop_ids: tuple[int, ...] = ()) -> Request:
    return Request(
        id=i, prompt=np.array([1], np.int32), max_new_tokens=new, sampling=Sampling(), key=keyed.stream(0, 0, i, 0, 0), stop_ids=stop_ids
    )


def steps(engine: ScriptedEngine, n: int) -> list[list[Completion]]:
    return [engine.step() for _ in range(n)]


def test_plays_the_table_one_token_a_step() -> None:
    engine = ScriptedEngine(script={0: [(5, -1.0), (6, -2.0), (2, -0.5), (9, -1.0)], 1: [(7, -0.1)]})
    engine.submit(request(0, new=10, stop_ids=(2,)))
    engine.submit(request(1, new=10))
    first, second, third = steps(engine, 3)
    assert [c.id for c in first] == [1]
    assert second == []
    assert third[0].tokens.tolist() == [5, 6, 2]
    np.testing.assert_allclose(third[0].logp, [-1.0, -2.0, -0.5])
    assert third[0].stop is StopReason.EOS
    assert engine.step() == []


def test_a_rule_ends_a_script() -> None:
    engine = ScriptedEngine(script={0: [(5, -1.0), (6, -2.0), (7, -0.5)]})
    engine.submit(replace(request(0, new=3), stop_rule=lambda tokens: tokens.tolist() == [5, 6]))
    (done,) = [c for made in steps(engine, 3) for c in made]
    assert (done.tokens.tolist(), done.stop) == ([5, 6], StopReason.STOP)


def test_places_are_refilled_in_order() -> None:
    engine = ScriptedEngine(ScriptedEngineOptions(slots=2))
    for i, new in enumerate([1, 3, 2, 1]):
        engine.submit(request(i, new))
    ended = [[c.id for c in done] for done in steps(engine, 4)]
    assert ended == [[0], [], [1, 2], [3]]


def test_tokens_depend_on_the_request_alone() -> None:
    wide, narrow = ScriptedEngine(ScriptedEngineOptions(slots=8)), ScriptedEngine(ScriptedEngineOptions(slots=1))
    said = []
    for engine in (wide, narrow):
        for i in range(5):
            engine.submit(request(i, new=6))
        said.append({c.id: c.tokens.tolist() for done in steps(engine, 30) for c in done})
    assert said[0] == said[1]
    assert len({tuple(t) for t in said[0].values()}) == 5
    assert all(0 <= t < 16 for tokens in said[0].values() for t in tokens)


def test_its_log_probs_are_those_of_its_policy() -> None:
    engine = ScriptedEngine(ScriptedEngineOptions(vocabulary=8))
    engine.submit(request(0, new=3))
    (done,) = steps(engine, 3)[2]
    np.testing.assert_allclose(done.logp, [-math.log(8)] * 3, rtol=1e-6)
    assert done.stop is StopReason.LENGTH


def test_delays_count_in_steps() -> None:
    engine = ScriptedEngine(delay=lambda r: 10 * r.id)
    for i in range(3):
        engine.submit(request(i, new=2))
    ends = {c.id: step for step, done in enumerate(steps(engine, 30), start=1) for c in done}
    assert ends == {0: 2, 1: 12, 2: 22}


def test_versions_change_between_tokens_and_only_at_a_commit() -> None:
    engine = ScriptedEngine()
    engine.submit(request(0, new=5))
    steps(engine, 2)
    assert engine.stage(3, 0, WEIGHTS) == weights_digest(WEIGHTS)
    steps(engine, 1)
    engine.commit(3)
    (done,) = steps(engine, 2)[1]
    assert done.versions.tolist() == [0, 0, 0, 3, 3]
    assert engine.digest == weights_digest(WEIGHTS)


def test_publications_are_two_phased() -> None:
    engine = ScriptedEngine()
    with pytest.raises(TrimtabError, match="nothing is staged"):
        engine.commit(1)
    engine.stage(1, 0, WEIGHTS)
    with pytest.raises(TrimtabError, match="version 1 is staged"):
        engine.commit(2)
    engine.abort()
    with pytest.raises(TrimtabError, match="nothing is staged"):
        engine.commit(1)
    with pytest.raises(TrimtabError, match="no tensors"):
        engine.stage(1, 0, {})
    assert (engine.version, engine.incarnation, engine.digest) == (0, 0, None)


def test_cancel_frees_the_place() -> None:
    engine = ScriptedEngine(ScriptedEngineOptions(slots=1))
    for i in range(3):
        engine.submit(request(i, new=2))
    engine.step()
    engine.cancel(0)
    engine.cancel(1)
    assert [[c.id for c in done] for done in steps(engine, 2)] == [[], [2]]


def test_needs_no_torch() -> None:
    code = "import sys, trimtab.engines.scripted, trimtab.engines.options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
