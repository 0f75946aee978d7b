"""Chunked log-probs equal the plain ones, and the N x V matrix never exists."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trimtab.functional.logprobs import KeptSets, fold, gather_logp, kept_mask, selected_logprobs, start


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements any operation returned."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [t.numel() for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self.numel = max([self.numel, *sizes])
        return out


def plain(hidden, weight, targets, temperature=1.0, kept_sets=None):
    """NumPy, float64, one row at a time, no running sums: (logp, entropy, sum p^2)."""
    h, w = hidden.double().numpy(), weight.double().numpy()
    temperature = np.broadcast_to(np.asarray(temperature, np.float64), len(h))
    out = []
    for i, target in enumerate(targets.tolist()):
        ids = list(range(len(w))) if kept_sets is None else kept_sets[i]
        z = w[ids] @ h[i] / temperature[i]
        p = np.exp(z - z.max())
        p /= p.sum()
        out.append((np.log(p[ids.index(target)]), -(p * np.log(p)).sum(), (p * p).sum()))
    return [torch.tensor(np.array(column)) for column in zip(*out, strict=True)]


def problem(n=37, d=12, v=101, dtype=torch.float64, scale=1.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    hidden = (torch.randn(n, d, generator=g) * scale).to(dtype)
    weight = torch.randn(v, d, generator=g).to(dtype)
    return hidden, weight, torch.randint(v, (n,), generator=g)


def ragged(sets):
    indptr = np.concatenate([[0], np.cumsum([len(s) for s in sets])])
    return KeptSets(torch.from_numpy(indptr), torch.tensor([i for s in sets for i in s]))


@pytest.mark.parametrize(("rows", "vocab"), [(1000, 1000), (7, 1000), (1000, 10), (7, 10), (1, 1), (37, 101)])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_any_chunking_equals_the_plain_softmax(rows, vocab, temperature):
    hidden, weight, targets = problem()
    got = selected_logprobs(hidden, weight, targets, temperature=temperature, entropy=True, sum_p2=True, row_chunk=rows, vocab_chunk=vocab)
    for a, b in zip(got, plain(hidden, weight, targets, temperature), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_float32_is_exact_to_1e_6_against_float64():
    hidden, weight, targets = problem(n=200, v=5000, dtype=torch.float32, scale=0.5)
    got = selected_logprobs(hidden, weight, targets, entropy=True, sum_p2=True, vocab_chunk=512)
    want = plain(hidden, weight, targets)
    assert got.logp.dtype == torch.float32
    for a, b in zip(got, want, strict=True):
        assert float(((a.double() - b) / b.abs().clamp(min=1.0)).abs().max()) <= 1e-6


def test_half_precision_accumulates_in_float32():
    hidden, weight, targets = problem(dtype=torch.bfloat16)
    got = selected_logprobs(hidden, weight, targets, vocab_chunk=10)
    logits = hidden.float() @ weight.float().T  # not rounded to bfloat16 on the way
    assert got.logp.dtype == torch.float32
    torch.testing.assert_close(got.logp, gather_logp(logits, targets), rtol=1e-5, atol=1e-5)


def test_temperature_may_differ_by_token():
    hidden, weight, targets = problem()
    temperature = torch.linspace(0.3, 2.0, len(targets), dtype=torch.float64)
    got = selected_logprobs(hidden, weight, targets, temperature=temperature, row_chunk=5, vocab_chunk=9)
    torch.testing.assert_close(got.logp, plain(hidden, weight, targets, temperature.numpy())[0])


@pytest.mark.parametrize("vocab", [10, 1000])
def test_kept_sets_renormalize_over_what_was_kept(vocab):
    hidden, weight, targets = problem()
    rng = np.random.default_rng(3)
    # The last set lies in one chunk alone: every other chunk of that row is empty.
    sets = [sorted({int(t), *rng.choice(101, rng.integers(0, 40), replace=False).tolist()}) for t in targets[:-1]] + [[int(targets[-1])]]
    got = selected_logprobs(
        hidden, weight, targets, temperature=0.8, kept=ragged(sets), entropy=True, sum_p2=True, row_chunk=8, vocab_chunk=vocab
    )
    for a, b in zip(got, plain(hidden, weight, targets, 0.8, sets), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    assert got.logp[-1] == 0.0
    assert got.sum_p2[-1] == 1.0


def test_a_target_outside_its_kept_set_has_probability_zero_and_an_empty_set_has_none():
    hidden, weight, _ = problem(n=2)
    got = selected_logprobs(hidden, weight, torch.tensor([5, 5]), kept=ragged([[1, 2], []]), entropy=True, vocab_chunk=4)
    assert got.logp[0] == -torch.inf
    assert torch.isfinite(got.entropy[0])
    assert torch.isnan(got.logp[1])


def test_extreme_logits_neither_overflow_nor_lose_the_entropy():
    hidden, weight = torch.tensor([[1.0], [1.0]]), torch.tensor([[1e4], [1e4], [-1e4], [1e4 + 1]])
    got = selected_logprobs(hidden, weight, torch.tensor([0, 2]), entropy=True, sum_p2=True, vocab_chunk=1)
    p = np.exp([0.0, 0.0, 1.0]) / np.exp([0.0, 0.0, 1.0]).sum()
    np.testing.assert_allclose(got.logp.numpy(), [np.log(p[0]), -20001.0 + np.log(p[2])], rtol=1e-6)
    np.testing.assert_allclose(got.entropy.numpy(), [-(p * np.log(p)).sum()] * 2, rtol=1e-5)
    np.testing.assert_allclose(got.sum_p2.numpy(), [(p * p).sum()] * 2, rtol=1e-5)


def test_a_nan_in_one_hidden_state_is_seen_at_that_token_only():
    hidden, weight, targets = problem()
    hidden[3, 2] = torch.nan
    got = selected_logprobs(hidden, weight, targets, entropy=True, sum_p2=True, row_chunk=8, vocab_chunk=10)
    for column in got:
        assert torch.isnan(column).nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("cut", [False, True])
def test_the_matrix_of_logits_is_never_allocated(cut):
    hidden, weight, targets = problem(n=300, d=4, v=2000, dtype=torch.float32)
    kept = ragged([[int(t), (int(t) + 1) % 2000] for t in targets]) if cut else None
    rows, vocab = 32, 100
    with LargestTensor() as seen:
        selected_logprobs(hidden, weight, targets, kept=kept, entropy=True, sum_p2=True, row_chunk=rows, vocab_chunk=vocab)
    # Nothing beyond one block of logits; views of the inputs (at most V x D) are not allocations.
    assert seen.numel <= max(rows * vocab, weight.numel(), 2 * len(targets))
    with LargestTensor() as seen:
        gather_logp(hidden @ weight.T, targets)
    assert seen.numel >= 300 * 2000, "the counter must see a full matrix where there is one"


def test_the_number_of_rows_in_flight_is_bounded_too():
    hidden, weight, targets = problem(n=3000, d=2, v=5, dtype=torch.float32)
    with LargestTensor() as seen:
        selected_logprobs(hidden, weight, targets, row_chunk=64)
    assert seen.numel <= hidden.numel()


def test_no_tokens_give_no_log_probs():
    hidden, weight, targets = problem(n=0)
    got = selected_logprobs(hidden, weight, targets, entropy=True)
    assert got.logp.shape == (0,)
    assert got.entropy.shape == (0,)
    assert got.sum_p2 is None


def test_the_forward_keeps_no_graph():
    hidden, weight, targets = problem()
    assert not selected_logprobs(hidden.requires_grad_(), weight, targets).logp.requires_grad


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), torch.zeros(37)])
def test_a_temperature_without_log_probs_is_refused(temperature):
    hidden, weight, targets = problem()
    with pytest.raises(ValueError, match="temperature"):
        selected_logprobs(hidden, weight, targets, temperature=temperature)


def test_kept_sets_of_another_number_of_tokens_are_refused():
    hidden, weight, targets = problem()
    with pytest.raises(ValueError, match="2 kept sets for 37 tokens"):
        selected_logprobs(hidden, weight, targets, kept=ragged([[1], [2]]))


def test_a_partition_refuses_what_it_did_not_sum():
    p = fold(start(torch.zeros(2)), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="entropy=True"):
        p.entropy()
    with pytest.raises(ValueError, match="sum_p2=True"):
        p.sum_p2()


def test_kept_mask_is_the_window_of_the_ragged_sets():
    mask = kept_mask(ragged([[0, 9], [4, 5, 6], [], [5]]), slice(1, 4), 4, 6)
    assert mask.tolist() == [[True, True], [False, False], [False, True]]


def test_gather_logp_is_differentiable_and_equals_log_softmax():
    logits = torch.randn(6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    targets = torch.arange(6)
    want = torch.autograd.grad(logits.log_softmax(1).gather(1, targets[:, None]).sum(), logits)[0]
    got = gather_logp(logits, targets)
    torch.testing.assert_close(got, logits.log_softmax(1).gather(1, targets[:, None])[:, 0])
    torch.testing.assert_close(torch.autograd.grad(got.sum(), logits)[0], want)
