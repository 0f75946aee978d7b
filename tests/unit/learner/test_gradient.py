"""The finished gradient as a vector, and how good the sketched cosine is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from trimtab.control.protocol import Notes
from trimtab.learner.gradient import ActorGradient, CosineSketch

SHAPES = [(7, 3), (5,), (2, 2, 2)]


def gradients(seed: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=g, dtype=torch.float64) for s in SHAPES]


def flat(parts: list[torch.Tensor]) -> np.ndarray:
    return np.concatenate([p.numpy().ravel() for p in parts])


def actor(parts: list[torch.Tensor]) -> ActorGradient:
    ps = [nn.Parameter(torch.zeros_like(p)) for p in parts]
    for p, g in zip(ps, parts, strict=True):
        p.grad = g.clone()
    return ActorGradient([*ps, nn.Parameter(torch.zeros(4))], 3, 1, Notes())


def test_it_is_one_vector() -> None:
    x, y = gradients(0), gradients(1)
    g = actor(x)
    other = actor(y).copy()
    a, b = flat(x), flat(y)
    assert g.norm() == g.raw_norm == pytest.approx(np.linalg.norm(a))
    assert g.dot(other) == pytest.approx(a @ b)
    assert other.norm2 == pytest.approx(b @ b)

    g.axpy(-0.5, other)
    np.testing.assert_allclose(flat(list(g.parts)), a - 0.5 * b, rtol=1e-12)
    assert g.norm() == pytest.approx(np.linalg.norm(a - 0.5 * b))
    g.scale(0.25)
    np.testing.assert_allclose(flat(list(g.parts)), 0.25 * (a - 0.5 * b), rtol=1e-12)
    assert g.norm() == pytest.approx(0.25 * np.linalg.norm(a - 0.5 * b))
    assert g.raw_norm == pytest.approx(np.linalg.norm(a))  # of the gradient before any method


def test_a_copy_stays_when_the_gradient_moves() -> None:
    g = actor(gradients(0))
    kept = g.copy()
    g.scale(0.0)
    np.testing.assert_allclose(flat(list(kept.state())), flat(gradients(0)))


def test_the_sketched_cosine_is_good_to_two_percent() -> None:
    """Over many pairs of known angle: unbiased, with the standard deviation that the docstring states."""
    rng = np.random.default_rng(0)
    errors = []
    for i in range(200):
        want = rng.uniform(-1, 1)
        a, noise = rng.normal(size=(2, 20_000))
        noise -= a * (a @ noise) / (a @ a)
        b = want * a / np.linalg.norm(a) + np.sqrt(1 - want**2) * noise / np.linalg.norm(noise)
        sketch = CosineSketch(seed=i)
        parts = [[torch.from_numpy(x[:15_000]).reshape(150, 100), torch.from_numpy(x[15_000:])] for x in (a, b)]
        assert sketch.observe(parts[0]) is None
        got = sketch.observe(parts[1])
        assert got is not None
        errors.append(got - want)
    assert abs(np.mean(errors)) < 0.005
    assert np.std(errors) < (2 / CosineSketch.COLUMNS) ** 0.5
    assert np.abs(errors).max() < 0.08


def test_the_sketch_sees_scale_free_direction() -> None:
    sketch = CosineSketch()
    x = gradients(0)
    sketch.observe(x)
    assert sketch.observe([100 * p for p in x]) == pytest.approx(1.0)
    assert sketch.observe([-p for p in x]) == pytest.approx(-1.0)
    assert sketch.observe([0 * p for p in x]) == 0.0
    assert sketch.observe([]) is None


def test_a_sketch_goes_on_from_its_state_and_needs_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    one = CosineSketch()
    one.observe(gradients(0))
    two = CosineSketch()
    two.previous = one.previous
    monkeypatch.setattr(CosineSketch, "CACHED", 1)  # hashes drawn again at each step
    three = CosineSketch()
    three.previous = one.previous
    monkeypatch.undo()
    want = one.observe(gradients(1))
    assert two.observe(gradients(1)) == want
    monkeypatch.setattr(CosineSketch, "CACHED", 1)
    assert three.observe(gradients(1)) == want


def test_the_whole_knows_when_a_part_changed() -> None:
    parts = gradients(0)
    ps = [nn.Parameter(torch.zeros_like(p)) for p in parts]
    for p, part in zip(ps, parts, strict=True):
        p.grad = part.clone()
    g = ActorGradient(ps, 0, 0, Notes(), groups=["a", "b", "a"])
    split = g.split()
    assert {name: len(part.parts) for name, part in split.items()} == {"a": 2, "b": 1}
    split["a"].scale(2.0)
    assert split["a"].norm() == pytest.approx(2 * np.linalg.norm(flat([parts[0], parts[2]])))
    assert g.norm() == pytest.approx(np.linalg.norm(flat([2 * parts[0], parts[1], 2 * parts[2]])))
    split["b"].axpy(-1.0, split["b"].copy())
    assert split["b"].norm() == 0.0
    assert g.norm() == pytest.approx(split["a"].norm())
    assert g.raw_norm == pytest.approx(np.linalg.norm(flat(parts)))
