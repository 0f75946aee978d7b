"""The head against autograd on a plain log_softmax, whole and chunked."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from support.rollouts import ragged
from trimtab.learner.head import Head
from trimtab.learner.packing import Packed, pack

VOCAB, DIM = 17, 6


@dataclass
class Case:
    packed: Packed
    hidden: torch.Tensor
    weight: torch.Tensor


def case(temperature: float, cut: bool, mixed: bool = False) -> Case:
    rng = np.random.default_rng(5)
    rollouts = ragged(rng, 5, vocab=VOCAB, temperature=temperature, cut=cut) + (ragged(rng, 3, vocab=VOCAB) if mixed else [])
    packed = pack(rollouts)
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(packed.targets_H.shape[0], DIM, generator=g, dtype=torch.float64)
    weight = torch.randn(VOCAB, DIM, generator=g, dtype=torch.float64)
    return Case(packed, hidden.requires_grad_(), weight.requires_grad_())


def reference(c: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """log p, entropy and sum p^2 of each action token, from dense masks built token by token from the records."""
    rows, temperatures = [], []
    for r in c.packed.rollouts:
        for s in r.segments:
            for i in range(s.actions):
                row = torch.full((VOCAB,), s.kept is None)
                if s.kept is not None:
                    row[torch.from_numpy(s.kept.ids[s.kept.indptr[i] : s.kept.indptr[i + 1]]).long()] = True
                rows.append(row)
                temperatures.append(s.sampling.temperature)
    keep = torch.stack(rows)[c.packed.to_H]
    temperature = torch.tensor(temperatures, dtype=torch.float64)[c.packed.to_H]
    z = (c.hidden @ c.weight.T / temperature[:, None]).masked_fill(~keep, -math.inf)
    logp = torch.log_softmax(z, 1)
    p = logp.exp()
    return logp.gather(1, c.packed.targets_H[:, None])[:, 0], -(p * logp.masked_fill(~keep, 0)).sum(1), p.square().sum(1)


@pytest.mark.parametrize("budget", [10**9, 40, 1], ids=["whole", "chunked", "one column at a time"])
@pytest.mark.parametrize(("temperature", "cut", "mixed"), [(1.0, False, False), (0.6, False, False), (0.6, True, False), (1.3, True, True)])
def test_values_and_gradients_equal_autograd(budget: int, temperature: float, cut: bool, mixed: bool) -> None:
    c = case(temperature, cut, mixed)
    want = reference(c)
    g = torch.Generator().manual_seed(1)
    d, h = (torch.randn(want[0].shape, generator=g, dtype=torch.float64) for _ in range(2))
    got = Head(c.weight, c.packed, vocab=True, budget=budget)(c.hidden)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    parameters = (c.hidden, c.weight)
    for coefficients in [(d, torch.zeros_like(h)), (torch.zeros_like(d), h), (d, h)]:
        expected = torch.autograd.grad(want[:2], parameters, coefficients, retain_graph=True)
        actual = torch.autograd.grad(got[:2], parameters, coefficients, retain_graph=True)
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_only_log_probs_when_nothing_else_is_asked_for() -> None:
    c = case(1.0, False)
    for budget in (10**9, 40):
        current, entropy, sum_p2 = Head(c.weight, c.packed, budget=budget)(c.hidden)
        torch.testing.assert_close(current, reference(c)[0])
        assert entropy is None
        assert sum_p2 is None
        (dh,) = torch.autograd.grad(current.sum(), c.hidden)
        torch.testing.assert_close(dh, torch.autograd.grad(reference(c)[0].sum(), c.hidden)[0])


def test_no_more_than_the_budget_of_logits_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    c = case(0.6, True)
    sizes = []
    original = Head._logits

    def record(self: Head, rows: slice, low: int, high: int) -> torch.Tensor:
        z = original(self, rows, low, high)
        sizes.append(z.numel())
        return z

    monkeypatch.setattr(Head, "_logits", record)
    current, _, _ = Head(c.weight, c.packed, vocab=True, budget=120)(c.hidden)
    current.sum().backward()
    assert max(sizes) <= 120
    assert len(sizes) >= 2 * VOCAB * current.numel() / 120


def test_a_weight_that_moved_since_the_forward_is_noticed() -> None:
    c = case(1.0, False)
    current, _, _ = Head(c.weight, c.packed)(c.hidden)
    with torch.no_grad():
        c.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        current.sum().backward()
