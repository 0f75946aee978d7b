"""Scalars of a gradient against NumPy, and what happens where it is broken."""

import math

import numpy as np
import pytest
import torch

from trimtab.functional.gradients import clip_factor, cosine, global_norm


def test_global_norm_is_that_of_the_concatenation_in_float64():
    g = torch.Generator().manual_seed(0)
    parts = [torch.randn(3, 4, generator=g), torch.randn(7, generator=g), torch.zeros(0)]
    flat = np.concatenate([p.double().numpy().ravel() for p in parts])
    assert global_norm(parts) == pytest.approx(np.linalg.norm(flat), rel=1e-14)
    assert global_norm([]) == 0.0


def test_squares_that_overflow_float32_do_not_overflow_the_norm():
    assert global_norm([torch.full((4,), 1e30)]) == pytest.approx(2e30, rel=1e-6)
    assert global_norm([torch.full((4,), 1e-30)]) == pytest.approx(2e-30, rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_gradient_has_a_broken_norm_and_no_clip_factor(bad):
    norm = global_norm([torch.ones(2), torch.tensor([1.0, bad])])
    assert not math.isfinite(norm)
    with pytest.raises(ValueError, match="not finite"):
        clip_factor(norm, 1.0)


def test_clip_factor():
    assert clip_factor(4.0, 1.0) == 0.25
    assert clip_factor(1.0, 1.0) == 1.0
    assert clip_factor(0.5, 1.0) == 1.0
    assert clip_factor(0.0, 1.0) == 1.0


def test_cosine():
    a, b = np.array([1.0, 2.0, 3.0]), np.array([3.0, -1.0, 0.5])
    na, nb = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    assert cosine(float(a @ b), na, nb) == pytest.approx(float(a @ b) / (na * nb))
    assert cosine(1.0 + 1e-15, 1.0, 1.0) == 1.0
    assert cosine(-1.0 - 1e-15, 1.0, 1.0) == -1.0
    assert cosine(0.0, 0.0, 1.0) == 0.0
    assert cosine(1e-320, 1e-160, 1e-160) == pytest.approx(1.0, rel=1e-3)
    assert math.isnan(cosine(math.nan, 1.0, 1.0))
