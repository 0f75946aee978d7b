"""Ids that the tokenizer does not have: found, never sampled, no part of any log-prob; engine and learner say the same."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from support.oracle import score_whole
from support.tiny import sliced, tiny_folder, tiny_policy, tiny_tokenizer
from trimtab import keyed
from trimtab.engines.checkpoint import Policy, load_policy
from trimtab.engines.options import TorchEngineOptions
from trimtab.engines.protocol import Completion, Request
from trimtab.engines.torch_engine import TorchEngine
from trimtab.engines.vocabulary import Vocabulary
from trimtab.functional.logprobs import wide_product
from trimtab.learner.packing import pack
from trimtab.learner.passes import PackedModel
from trimtab.records import Outcome, Rollout, Sampling, Segment, StopReason, TrimtabError

KNOWN = 17
SAMPLINGS = [Sampling(), Sampling(temperature=0.7), Sampling(top_k=5), Sampling(top_p=0.8), Sampling(allowed=(3, 4, 9), top_p=0.9)]


def generate(policy: Policy, sampling: Sampling, n: int = 12) -> list[Completion]:
    engine = TorchEngine(policy, TorchEngineOptions(slots=4, dtype="float64"))
    draw = np.random.default_rng(0)
    for i in range(n):
        prompt = draw.integers(3, KNOWN, 4).astype(np.int32)
        engine.submit(Request(id=i, prompt=prompt, max_new_tokens=9, sampling=sampling, key=keyed.stream(0, 0, i, 0, 0)))
    done: list[Completion] = []
    while len(done) < n:
        done += engine.step()
    return sorted(done, key=lambda c: c.id)


def rollout_of(c: Completion, sampling: Sampling) -> Rollout:
    prompt = np.array([1, 5, 6], np.int32)
    tokens = np.concatenate([prompt, c.tokens])
    mask = np.arange(len(tokens)) >= len(prompt)
    segment = Segment(
        tokens=tokens,
        action_mask=mask,
        behavior_logp=np.zeros(len(tokens), np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        turn=np.zeros(len(tokens), np.int16),
        sampling=sampling,
        kept=c.kept,
    )
    return Rollout(member=0, segments=(segment,), score=0.0, outcome=Outcome.WRONG, stop=StopReason.EOS)


# ------------------------------------------------------------------------------------------------------------- which they are


def test_holes_and_padding_of_a_vocabulary() -> None:
    ids = Vocabulary.of({0, 1, 2, 4, 7, 31}, rows=10)
    assert ids == Vocabulary(10, 8, (3, 5, 6))
    assert ids.unreachable == 5
    assert ids.cut(torch.zeros(1, 3), low=4).tolist() == [[0.0, -math.inf, -math.inf]]
    assert Vocabulary.of(range(6), rows=6).unreachable == 0


def test_added_and_special_tokens_can_be_sampled() -> None:
    policy = tiny_policy(padding=15)
    assert policy.vocabulary == Vocabulary(32, KNOWN)
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<tool>"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>"]})
    assert Policy.of(policy.model, tokenizer).vocabulary == Vocabulary(32, KNOWN + 2)


def test_an_end_of_response_that_only_the_model_names_can_be_sampled() -> None:
    model = tiny_policy(padding=15).model
    model.config.eos_token_id = 20
    policy = Policy.of(model, tiny_tokenizer())
    assert policy.vocabulary == Vocabulary(32, 21, (17, 18, 19))


def test_a_tokenizer_with_ids_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")
    file = folder / "tokenizer.json"
    table = json.loads(file.read_text())
    table["model"]["vocab"][","] = 40  # as many tokens as before, one of them far beyond
    file.write_text(json.dumps(table))
    with pytest.raises(TrimtabError, match=r"the tokenizer has token ids up to 40, the model only 17 of them; they do not match"):
        load_policy(folder)


# ----------------------------------------------------------------------------------------------------------------- sampling


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("tied", [False, True])
def test_a_padded_model_samples_as_the_sliced_one(sampling: Sampling, tied: bool) -> None:
    policy = tiny_policy(tied, dtype=torch.float64, padding=15)
    with torch.no_grad():
        mass = policy.model(torch.tensor([[1, 5, 6, 7]])).logits.softmax(-1)[0, :, KNOWN:].sum(-1)
    assert float(mass.max()) > 0.3  # they would be sampled
    small = Policy.of(sliced(policy.model, KNOWN), policy.tokenizer)
    for a, b in zip(generate(policy, sampling), generate(small, sampling), strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        assert int(a.tokens.max()) < KNOWN
        np.testing.assert_allclose(a.logp, b.logp, rtol=0, atol=1e-6)
        if a.kept is not None:
            assert b.kept is not None
            assert a.kept.ids.tolist() == b.kept.ids.tolist()


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_holes_are_never_sampled_and_learner_and_engine_agree(sampling: Sampling) -> None:
    policy = tiny_policy(dtype=torch.float64, padding=15)
    holes = (3, 10) if sampling.allowed else (4, 10)
    ids = Vocabulary(32, KNOWN, holes)
    holed = Policy(**{name: getattr(policy, name) for name in Policy.__slots__} | {"vocabulary": ids})
    engine = TorchEngine(holed, TorchEngineOptions(slots=4, dtype="float64"))
    learner = PackedModel(policy.model, ids=ids)
    for c in generate(holed, sampling):
        assert not np.isin(c.tokens, holes).any()
        r = rollout_of(c, sampling)
        (scored,) = engine.score(r.segments)
        assert np.isfinite(scored).all()
        np.testing.assert_allclose(learner.score(pack([r], dtype=torch.float64)).numpy(), scored, rtol=0, atol=1e-5)


def test_scores_are_those_of_transformers_on_the_sliced_model() -> None:
    policy = tiny_policy(dtype=torch.float64, padding=15)
    engine = TorchEngine(policy, TorchEngineOptions(slots=4, dtype="float64"))
    for c in generate(policy, Sampling(), n=4):
        (segment,) = rollout_of(c, Sampling()).segments
        want = score_whole(sliced(policy.model, KNOWN), segment.tokens[:3], segment.tokens[3:])
        np.testing.assert_allclose(engine.score([segment])[0], want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_p=0.8)])
def test_a_recorded_id_that_cannot_be_sampled_scores_minus_infinity(sampling: Sampling) -> None:
    policy = tiny_policy(dtype=torch.float64, padding=15)
    c = generate(policy, sampling, n=1)[0]
    c.tokens[0] = KNOWN + 4
    if c.kept is not None:
        c.kept.ids[0] = KNOWN + 4
    (segment,) = rollout_of(c, sampling).segments
    (scored,) = TorchEngine(policy, TorchEngineOptions(slots=4, dtype="float64")).score([segment])
    assert scored[0] == -math.inf
    assert np.isfinite(scored[1:]).all()


def test_an_id_without_a_token_cannot_be_asked_for() -> None:
    engine = TorchEngine(tiny_policy(padding=15), TorchEngineOptions(slots=4))
    request = Request(id=0, prompt=np.array([1], np.int32), max_new_tokens=1, sampling=Sampling(allowed=(3, KNOWN)), key=0)
    with pytest.raises(TrimtabError, match=r"allowed = \(3, 17\): give at least one token id, all within the vocabulary of 17"):
        engine.submit(request)


# ------------------------------------------------------------------------------------------------------------- narrow dtypes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]
)
def test_logits_of_narrow_weights_are_not_rounded(dtype: torch.dtype, device: str) -> None:
    g = torch.Generator().manual_seed(0)
    x, w = (8 * torch.randn(5, 64, generator=g)).to(device, dtype), torch.randn(9000, 64, generator=g).to(device, dtype)
    z = wide_product(x, w)
    assert z.dtype == torch.float32
    exact = x.double() @ w.double().T
    assert float((z.double() - exact).abs().max()) < 1e-3 < 0.01 < float(((x @ w.T).double() - exact).abs().max())


def test_the_wide_product_of_cuda_takes_what_it_is_given() -> None:
    """torch has it for CUDA only; its shapes and dtypes are checked on the meta device."""
    if "dtype" not in torch.ops.aten.mm.overloads():
        pytest.skip("torch before 2.8")
    x, w = (torch.empty(n, 64, dtype=torch.bfloat16, device="meta") for n in (5, 90))
    z = torch.mm(x, w.T, out_dtype=torch.float32)
    assert (z.shape, z.dtype) == ((5, 90), torch.float32)


def test_bfloat16_engine_and_learner_agree_to_a_hundredth() -> None:
    policy = tiny_policy(hidden=64, padding=15, dtype=torch.bfloat16)
    engine = TorchEngine(policy, TorchEngineOptions(slots=4, dtype="bfloat16"))
    learner = PackedModel(policy.model, ids=policy.vocabulary)
    for c in generate(tiny_policy(hidden=64, padding=15), Sampling(), n=6):
        r = rollout_of(c, Sampling())
        np.testing.assert_allclose(learner.score(pack([r])).numpy(), engine.score(r.segments)[0], rtol=0, atol=0.01)
