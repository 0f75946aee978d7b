"""The prefix-forgetting score: its formula, and what the engine reports of rollouts that a swap interrupts."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.oracle import score_whole
from tests.unit.engines.test_publish import policies, publish, weights
from tests.unit.engines.test_torch_engine import drain, requests

from trimtab.engines.forgetting import Phi, forgetting
from trimtab.engines.options import ScriptedEngineOptions, TorchEngineOptions
from trimtab.engines.scripted import ScriptedEngine
from trimtab.engines.torch_engine import TorchEngine
from trimtab.records import Sampling

OPTIONS = TorchEngineOptions(slots=4, dtype="float64")
MU, Q = np.array([-1.0, -2.0, -0.5]), np.array([-1.5, -1.0, -0.5])


@pytest.mark.parametrize(
    ("phi", "expected"),
    [("relu", 0.5 / 3), ("abs", 0.5), ("k1", -0.5 / 3), ("k3", (np.exp(-0.5) - 1 + 0.5 + np.exp(1) - 1 - 1) / 3)],
)
def test_golden(phi: Phi, expected: float) -> None:
    assert forgetting(MU, Q, phi) == pytest.approx(expected)


@pytest.mark.parametrize("phi", ["relu", "abs", "k1", "k3"])
def test_terms_that_are_not_finite_are_dropped_and_none_left_is_infinite(phi: Phi) -> None:
    broken = np.array([-np.inf, np.nan])
    assert forgetting(np.concatenate([MU, [-1.0, -1.0]]), np.concatenate([Q, broken]), phi) == pytest.approx(forgetting(MU, Q, phi))
    assert forgetting(np.array([-1.0, -1.0]), broken, phi) == np.inf
    assert forgetting(np.zeros(0), np.zeros(0), phi) == np.inf


def test_the_k3_of_a_huge_gap_is_dropped_not_infinite() -> None:
    assert forgetting(np.array([-1e4, -1.0]), np.array([0.0, -1.0]), "k3") == 0.0


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.7), Sampling(top_k=5)], ids=["whole", "cut"])
def test_the_engine_scores_prefixes_under_the_version_that_finishes_them(sampling: Sampling) -> None:
    """Two swaps inside the rollouts: only the last one's scores are kept."""
    old, new = policies()
    batch = [replace(r, max_new_tokens=24, sampling=sampling) for r in requests(6)]
    engine = TorchEngine(old, OPTIONS, rescore="abs")
    plain = TorchEngine(old, OPTIONS)
    for e in (engine, plain):
        for request in batch:
            e.submit(request)
        for steps, version, policy in ((5, 1, new), (4, 2, old)):
            for _ in range(steps):
                e.step()
            publish(e, version, weights(policy))
    done, same = drain(engine, 6), drain(plain, 6)
    for request in batch:
        got = done[request.id]
        assert got.tokens.tolist() == same[request.id].tokens.tolist()
        assert same[request.id].forgetting is None
        if request.id >= 4:  # started after both swaps
            assert got.forgetting is None
            continue
        assert got.versions.tolist() == [0] * 5 + [1] * 4 + [2] * 15
        if not sampling.cut:
            now = score_whole(old.model, request.prompt, got.tokens, sampling.temperature)[:9]
            assert got.forgetting == pytest.approx(forgetting(got.logp[:9], now, "abs"), rel=1e-5)
        # the first five were sampled by the very weights that finish the rollout, the four after them by others
        assert got.forgetting is not None
        assert got.forgetting > 0


def test_a_swap_before_the_first_token_interrupts_nothing() -> None:
    old, new = policies()
    engine = TorchEngine(old, OPTIONS, rescore="relu")
    engine.submit(replace(requests(1)[0], max_new_tokens=6))
    publish(engine, 1, weights(new))
    assert drain(engine, 1)[0].forgetting is None


def test_keys_that_are_kept_are_not_scored_again() -> None:
    old, new = policies()
    engine = TorchEngine(old, OPTIONS.model_copy(update={"cache_policy": "keep"}), rescore="relu")
    engine.submit(replace(requests(1)[0], max_new_tokens=12))
    for _ in range(4):
        engine.step()
    publish(engine, 1, weights(new))
    assert drain(engine, 1)[0].forgetting is None


def test_a_script_forgets_nothing() -> None:
    old, new = policies()
    engine = ScriptedEngine(ScriptedEngineOptions(slots=1), rescore=True)
    for request in requests(2):
        engine.submit(replace(request, max_new_tokens=6))
    for _ in range(3):
        engine.step()
    digest = engine.stage(1, 0, weights(new))
    assert digest != engine.stage(1, 0, weights(old))
    engine.commit(1)
    done = {c.id: c for _ in range(20) for c in engine.step()}
    assert [done[i].forgetting for i in range(2)] == [0.0, None]
