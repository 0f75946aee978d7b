"""The sampling distribution: golden values in NumPy, properties of the cut, and the walk from a uniform to a token."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.functional.distribution import Knobs, check_sampling, dense, kept_set, log_probs, ragged, sample, tempered
from trimtab.functional.logprobs import KeptSets, selected_logprobs
from trimtab.records import Sampling, TrimtabError

LOGITS = [1.0, 2.0, 0.5, 3.0, 2.0]


def distribution(logits: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor | None]:
    knobs = Knobs.of([sampling] * len(logits), logits.shape[-1])
    z = tempered(logits, knobs.temperature_N)
    kept = kept_set(z, knobs)
    return log_probs(z, kept), kept


def kept_by_hand(logits: list[float], sampling: Sampling) -> set[int]:
    """The definition, one token at a time."""
    ids = [v for v in range(len(logits)) if sampling.allowed is None or v in sampling.allowed]
    ids.sort(key=lambda v: (-logits[v], v))
    ids = ids[: sampling.top_k or None]
    mass = [math.exp((logits[v] - max(logits)) / sampling.temperature) for v in ids]
    kept, reached = set(), 0.0
    for v, m in zip(ids, mass, strict=True):
        kept.add(v)
        reached += m / sum(mass)
        if reached >= sampling.top_p:
            break
    return kept


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(), {0, 1, 2, 3, 4}),
        (Sampling(temperature=0.6), {0, 1, 2, 3, 4}),
        (Sampling(top_k=2), {3, 1}),  # 1 and 4 are equal: the lower id stays
        (Sampling(top_p=0.5), {3}),  # softmax: 0.07, 0.20, 0.04, 0.54, 0.20
        (Sampling(top_p=0.6), {3, 1}),
        (Sampling(temperature=2.0, top_p=0.6), {3, 1, 4}),  # the temperature comes first: 0.14, 0.23, 0.11, 0.38, 0.23
        (Sampling(top_k=2, top_p=0.7), {3}),  # renormalized over the top 2: 0.73, 0.27
        (Sampling(allowed=(0, 2)), {0, 2}),
        (Sampling(allowed=(0, 2, 4), top_k=1), {4}),
    ],
)
def test_golden_kept_sets_and_log_probs(sampling: Sampling, kept: set[int]) -> None:
    logp, kept_NxV = distribution(torch.tensor([LOGITS], dtype=torch.float64), sampling)
    z = np.array(LOGITS) / sampling.temperature
    mass = np.where([v in kept for v in range(5)], np.exp(z), 0.0)
    with np.errstate(divide="ignore"):
        expected = np.log(mass / mass.sum())
    np.testing.assert_allclose(logp[0].numpy(), expected, rtol=0, atol=1e-14)
    assert (kept_NxV is None) == (not sampling.cut)


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.integers(-8, 8).map(lambda i: i / 2), min_size=2, max_size=12),
    temperature=st.sampled_from([0.3, 0.6, 1.0, 2.5]),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([0.05, 0.31, 0.5, 0.83, 0.99, 1.0]),
    data=st.data(),
)
def test_kept_set_is_the_definition(logits: list[float], temperature: float, top_k: int, top_p: float, data: st.DataObject) -> None:
    allowed = data.draw(st.none() | st.sets(st.integers(0, len(logits) - 1), min_size=1).map(lambda s: tuple(sorted(s))))
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, allowed=allowed)
    logp, kept = distribution(torch.tensor([logits], dtype=torch.float64), sampling)
    if kept is None:
        kept = torch.ones_like(logp, dtype=torch.bool)
    assert set(kept[0].nonzero()[:, 0].tolist()) == kept_by_hand(logits, sampling)
    assert float(logp[kept].exp().sum()) == pytest.approx(1.0, abs=1e-12)
    assert bool((logp[~kept] == -math.inf).all())


def test_rows_with_different_samplings_do_not_touch_each_other() -> None:
    samplings = [Sampling(), Sampling(temperature=0.5, top_k=3), Sampling(top_p=0.4), Sampling(allowed=(1, 2)), Sampling(temperature=1.7)]
    logits = torch.randn(5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    knobs = Knobs.of(samplings, 9)
    z = tempered(logits, knobs.temperature_N)
    together = log_probs(z, kept_set(z, knobs))
    for row, sampling in enumerate(samplings):
        alone, _ = distribution(logits[row : row + 1], sampling)
        assert torch.equal(together[row], alone[0])


def first_exceeding(mass: list[float], u: float) -> int:
    """The rule, token by token: Python floats are float64."""
    cdf, reached = [], 0.0
    for m in mass:
        reached += m
        cdf.append(reached)
    threshold = u * (cdf[-1] * (1 - 2**-52))
    return next(v for v, m in enumerate(mass) if m > 0 and cdf[v] > threshold)


@settings(max_examples=100, deadline=None)
@given(
    logits=st.lists(st.floats(-30, 30) | st.just(-math.inf), min_size=2, max_size=20).filter(lambda z: max(z) > -math.inf),
    u=st.floats(0, 1, exclude_max=True),
)
def test_sample_is_the_rule(logits: list[float], u: float) -> None:
    logp = torch.tensor([logits], dtype=torch.float64).log_softmax(-1)
    token = int(sample(logp, torch.tensor([u], dtype=torch.float64)))
    assert token == first_exceeding(logp.exp()[0].tolist(), u)


@pytest.mark.parametrize("u", [0.0, 5e-324, 0.5, 1 - 2**-53])
def test_a_token_without_mass_is_never_sampled(u: float) -> None:
    logits = torch.full((64, 40), -math.inf)
    generator = torch.Generator().manual_seed(1)
    for row in range(64):  # a few random tokens have mass; the first and the last have none
        ids = torch.randperm(38, generator=generator)[: 1 + row % 5] + 1
        logits[row, ids] = torch.randn(len(ids), generator=generator)
    logp = logits.log_softmax(-1)
    tokens = sample(logp, torch.full((64,), u, dtype=torch.float64))
    assert bool(logp.gather(-1, tokens[:, None]).isfinite().all())
    with_mass = [row.isfinite().nonzero()[:, 0] for row in logp]
    if u < 0.1:
        assert tokens.tolist() == [int(ids[0]) for ids in with_mass]
    if u > 0.9:
        assert tokens.tolist() == [int(ids[-1]) for ids in with_mass]


def test_frequencies_are_the_probabilities() -> None:
    logp = torch.tensor(LOGITS).log_softmax(-1)
    n = 20_000
    u = (torch.arange(n, dtype=torch.float64) + 0.5) / n  # evenly spaced: every count is right to one
    counts = torch.bincount(sample(logp.expand(n, -1), u), minlength=5)
    np.testing.assert_allclose(counts.numpy(), n * logp.exp().numpy(), atol=1.01)


@pytest.mark.parametrize(("dtype", "gap"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.6), Sampling(temperature=0.6, top_p=0.8), Sampling(top_k=5, allowed=tuple(range(12)))]
)
def test_the_learner_scores_the_same_distribution(sampling: Sampling, dtype: torch.dtype, gap: float) -> None:
    generator = torch.Generator().manual_seed(2)
    hidden, weight = torch.randn(50, 16, dtype=dtype, generator=generator), torch.randn(37, 16, dtype=dtype, generator=generator)
    logp, kept = distribution(hidden @ weight.T, sampling)
    tokens = sample(logp, torch.rand(50, dtype=torch.float64, generator=generator))
    sets = None
    if kept is not None:
        recorded = ragged(kept)
        sets = KeptSets(torch.from_numpy(recorded.indptr), torch.from_numpy(recorded.ids))
    learner = selected_logprobs(hidden, weight, tokens, temperature=sampling.temperature, kept=sets, vocab_chunk=8).logp
    assert float((learner - logp.gather(-1, tokens[:, None])[:, 0]).abs().max()) < gap


def test_kept_sets_survive_the_ragged_form() -> None:
    kept = torch.rand(30, 11, generator=torch.Generator().manual_seed(3)) < 0.4
    kept[4] = False
    recorded = ragged(kept)
    assert recorded.ids[recorded.indptr[7] : recorded.indptr[8]].tolist() == kept[7].nonzero()[:, 0].tolist()
    assert torch.equal(dense(recorded, 11), kept)


def test_half_precision_logits_are_widened() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(4)).bfloat16()
    logp, _ = distribution(logits, Sampling())
    assert logp.dtype == torch.float32
    assert torch.equal(logp, logits.float().log_softmax(-1))


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        (Sampling(temperature=0.0), "temperature"),
        (Sampling(temperature=math.inf), "temperature"),
        (Sampling(top_p=0.0), "top_p"),
        (Sampling(top_p=1.1), "top_p"),
        (Sampling(top_k=-1), "top_k"),
        (Sampling(allowed=()), "allowed"),
        (Sampling(allowed=(3, 10)), "allowed"),
        (Sampling(allowed=(-1,)), "allowed"),
    ],
)
def test_what_defines_no_distribution_is_refused_by_name(sampling: Sampling, field: str) -> None:
    with pytest.raises(TrimtabError, match=field):
        check_sampling(sampling, 10)
