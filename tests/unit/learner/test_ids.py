"""Ids that no tokenizer has take no part in training: a padded model trains exactly as one whose vocabulary was sliced.

Beside it stands plain autograd on masked logits, which knows holes in the middle of the vocabulary, too.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from support.rollouts import ragged, rollout, segment
from support.tiny import sliced
from support.updates import make_batch, make_learner, tiny_model
from trimtab.engines.vocabulary import Vocabulary
from trimtab.learner.head import Head
from trimtab.learner.norms.estimate import Route
from trimtab.learner.packing import pack
from trimtab.learner.passes import PackedModel
from trimtab.records import Rollout

KNOWN, PADDING = 17, 14
IDS = Vocabulary(KNOWN + PADDING, KNOWN)
HOLED = Vocabulary(KNOWN + PADDING, KNOWN, (5, 11))
ROUTES: tuple[Route, ...] = ("bookkeeping", "two_pass", "two_buffer")


def padded(tied: bool = False) -> PreTrainedModel:
    return tiny_model(tied=tied, padding=PADDING)  # type: ignore[return-value]


def avoiding(holes: tuple[int, ...], rollouts: list[Rollout]) -> list[Rollout]:
    """The same rollouts with other tokens in place of these."""
    for r in rollouts:
        for s in r.segments:
            s.tokens[np.isin(s.tokens, holes)] = 6
    return rollouts


def naive_logp(model: PreTrainedModel, r: Rollout, ids: Vocabulary) -> Tensor:
    """Log-probs of the actions by a plain forward, every logit of an unknown id set to -inf."""
    known = torch.ones(ids.rows, dtype=torch.bool)
    known[ids.size :] = False
    known[list(ids.holes)] = False
    parts = []
    for s in r.segments:
        at = np.flatnonzero(s.action_mask)
        tokens = torch.from_numpy(s.tokens.astype(np.int64))
        logits = model(input_ids=tokens[None]).logits[0, at - 1] / s.sampling.temperature
        parts.append(torch.log_softmax(logits.masked_fill(~known, -math.inf), -1)[torch.arange(len(at)), tokens[at]])
    return torch.cat(parts)


def coefficients(rollouts: list[Rollout], seed: int = 0) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.rand(r.actions, generator=g, dtype=torch.float64) + 0.1 for r in rollouts]


# ---------------------------------------------------------------------------------------------------------------- the head


@settings(deadline=None, max_examples=40)
@given(
    size=st.integers(1, 19),
    holes=st.sets(st.integers(0, 17), max_size=4),
    budget=st.sampled_from([10**9, 60, 1]),
    cut=st.booleans(),
    temperature=st.sampled_from([1.0, 0.7]),
    seed=st.integers(0, 50),
)
def test_values_and_gradients_of_the_head_are_autograds(
    size: int, holes: set[int], budget: int, cut: bool, temperature: float, seed: int
) -> None:
    ids = Vocabulary(19, size, tuple(sorted(h for h in holes if h < size - 1)))
    known = [i for i in range(size) if i not in ids.holes]
    rng = np.random.default_rng(seed)
    rollouts = ragged(rng, 4, vocab=19, temperature=temperature, cut=cut)
    for r in rollouts:
        for s in r.segments:
            s.tokens[:] = [known[t % len(known)] for t in s.tokens]
            if s.kept is not None:  # the kept set holds what was sampled
                s.kept.ids[s.kept.indptr[:-1]] = s.tokens[s.action_mask]
    packed = pack(rollouts)
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(packed.targets_H.shape[0], 6, generator=g, dtype=torch.float64).requires_grad_()
    weight = torch.randn(19, 6, generator=g, dtype=torch.float64)
    weight[size:] += 50.0  # whoever forgets the mask sees nothing else
    weight.requires_grad_()
    keep = torch.zeros(packed.targets_H.shape[0], 19, dtype=torch.bool)
    keep[:, known] = True
    if packed.kept_H is not None:
        for i in range(keep.shape[0]):
            cut_to = torch.zeros(19, dtype=torch.bool)
            cut_to[packed.kept_H.ids[packed.kept_H.indptr[i] : packed.kept_H.indptr[i + 1]]] = True
            keep[i] &= cut_to
    z = (hidden @ weight.T / temperature).masked_fill(~keep, -math.inf)
    logp = torch.log_softmax(z, 1)
    p = logp.exp()
    want = (logp.gather(1, packed.targets_H[:, None])[:, 0], -(p * logp.masked_fill(~keep, 0)).sum(1), p.square().sum(1))
    got = Head(weight, packed, vocab=True, budget=budget, ids=ids)(hidden)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    d, h = (torch.randn(want[0].shape, generator=g, dtype=torch.float64) for _ in range(2))
    expected = torch.autograd.grad(want[:2], (hidden, weight), (d, h))
    actual = torch.autograd.grad(got[:2], (hidden, weight), (d, h))
    for a, b in zip(actual, expected, strict=True):
        assert bool(torch.isfinite(a).all())
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert not bool(actual[1][size:].any())


@pytest.mark.parametrize("budget", [10**9, 60])
def test_a_recorded_token_that_cannot_be_sampled_has_probability_zero(budget: int) -> None:
    """Of a run made before ids were left out: no index error, and no number that hides it."""
    one = rollout(segment(np.random.default_rng(0), "...aaa"))
    one.segments[0].tokens[4] = KNOWN + 3
    p = PackedModel(padded(), logits=budget, ids=IDS).forward(pack([one]), vocab=True)
    assert p.current_N[1] == -math.inf
    assert bool(torch.isfinite(p.current_N[[0, 2]]).all())
    assert p.entropy_N is not None
    assert bool(torch.isfinite(p.entropy_N).all())


# ---------------------------------------------------------------------------------------------------------------- norms


@pytest.mark.parametrize("ids", [IDS, HOLED], ids=["padded", "with holes"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(("logits", "memory"), [(2**22, 2**29), (2**22, 0), (60, 0)], ids=["kept", "whole", "chunked"])
@pytest.mark.parametrize("route", ROUTES)
def test_norms_and_gradients_of_every_route_are_those_of_masked_logits(
    route: Route, logits: int, memory: int, tied: bool, ids: Vocabulary
) -> None:
    model = padded(tied)
    rollouts = avoiding(ids.holes, ragged(np.random.default_rng(0), 6, temperature=0.7))
    rollouts[2].segments[0].tokens[0] = KNOWN + 2  # a prompt may hold what cannot be said
    q = coefficients(rollouts)
    parameters = list(model.parameters())
    each = [torch.autograd.grad((naive_logp(model, r, ids) * q_i).sum(), parameters) for r, q_i in zip(rollouts, q, strict=True)]
    want = torch.stack([torch.stack([g.square().sum() for g in one]).sum() for one in each])
    reward = torch.arange(6, dtype=torch.float64)
    c = 0.5 + 0.3 * reward  # affine in the reward, as two_buffer wants it
    p = PackedModel(model, route=route, logits=logits, memory=memory, ids=ids).forward(pack(rollouts), norms=True)
    got = p.norms(torch.cat(q), torch.ones(6, dtype=torch.float64), reward, torch.zeros(6, dtype=torch.int64))
    torch.testing.assert_close(got.sqrt(), want.sqrt(), rtol=1e-10, atol=0)
    p.finish(c)
    for parameter, *gs in zip(parameters, *each, strict=True):
        total = sum(c_i * g for c_i, g in zip(c, gs, strict=True))
        assert isinstance(total, Tensor)
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, total, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("estimator", ["last_layer", "sketch"])
@pytest.mark.parametrize(("logits", "memory"), [(2**22, 2**29), (60, 0)], ids=["kept", "chunked"])
def test_estimated_norms_are_those_of_the_sliced_model(estimator: Any, logits: int, memory: int) -> None:
    model = padded()
    rollouts = ragged(np.random.default_rng(1), 5)
    zero = torch.zeros(5, dtype=torch.float64)
    found = []
    for m, ids in ((model, IDS), (sliced(model, KNOWN), None)):
        p = PackedModel(m, estimator=estimator, depth=3, logits=logits, memory=memory, ids=ids).forward(pack(rollouts), norms=True)
        found.append(p.norms(torch.cat(coefficients(rollouts)), zero, zero, zero.long()))
    torch.testing.assert_close(*found, rtol=1e-9, atol=0)


# ---------------------------------------------------------------------------------------------------------------- updates


@pytest.mark.parametrize(
    ("methods", "options"),
    [
        (["vcpo"], {"norms": "bookkeeping"}),
        (["vcpo"], {"norms": "two_buffer"}),
        (["vcpo", {"name": "opob", "norms": "sketch"}], {}),
        (["seq_tis", "grpo", {"name": "kl_term", "beta": 0.04}], {}),
        (["seq_tis", "grpo", {"name": "entropy_term", "coefficient": 0.1}], {"micro_tokens": 40}),
        (["gae", "ppo_clip"], {"epochs": 2}),
        (["otb", "none"], {}),
    ],
    ids=["vcpo", "two_buffer", "sketch", "reference", "entropy", "gae", "otb"],
)
def test_a_learner_of_a_padded_model_is_one_of_the_sliced_model(methods: list[Any], options: dict[str, Any]) -> None:
    model = padded()
    small = sliced(model, KNOWN)
    batch = make_batch(copy.deepcopy(small), spread=0.3)
    learners = [make_learner(m, methods, ids=ids, optimizer={"lr": 1e-3}, **options)[0] for m, ids in ((model, IDS), (small, None))]
    ours, theirs = (learner.train(batch) for learner in learners)
    for a, b in zip(ours, theirs, strict=True):
        assert a.applied
        assert b.applied
        assert a.seen is not None
        assert b.seen is not None
        np.testing.assert_allclose(a.seen.log_ratio_N, b.seen.log_ratio_N, rtol=0, atol=1e-9)
        np.testing.assert_allclose(a.seen.entropy_N, b.seen.entropy_N, rtol=0, atol=1e-9)  # type: ignore[arg-type]
        assert a.raw_norm == pytest.approx(b.raw_norm, rel=1e-7)
    decayed = math.prod(1 - 1e-3 * r.multiplier * 0.1 for r in ours)
    for (name, p), w, before in zip(
        learners[0].model.model.named_parameters(), learners[1].model.parameters(), model.parameters(), strict=True
    ):
        torch.testing.assert_close(p[: w.shape[0]], w, rtol=1e-6, atol=1e-8)
        if p.shape[0] != w.shape[0]:  # no gradient reaches the padding: only the decay that every weight has
            torch.testing.assert_close(p[KNOWN:], before[KNOWN:] * decayed, rtol=1e-9, atol=0, msg=name)
