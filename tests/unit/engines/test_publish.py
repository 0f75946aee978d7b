"""Publishing into an engine: staging disturbs nothing, commits are whole, tokens carry their version, no cache outlives its weights."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.oracle import sample_alone, score_whole
from tests.support.tiny import tiny_policy
from tests.unit.engines.test_torch_engine import drain, generate, requests
from torch import Tensor

from trimtab.engines.checkpoint import Policy
from trimtab.engines.digest import weights_digest
from trimtab.engines.options import TorchEngineOptions
from trimtab.engines.torch_engine import TorchEngine
from trimtab.records import TrimtabError

OPTIONS = TorchEngineOptions(slots=4, dtype="float64")
OLD, NEW = 0, 1


def policies(tied: bool = False) -> tuple[Policy, Policy]:
    return tiny_policy(tied, dtype=torch.float64, seed=OLD), tiny_policy(tied, dtype=torch.float64, seed=NEW)


def weights(policy: Policy) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in policy.model.named_parameters()}


def publish(engine: TorchEngine, version: int, mapping: Mapping[str, Tensor], incarnation: int = 0) -> None:
    assert engine.stage(version, incarnation, mapping) == weights_digest(mapping)
    engine.commit(version)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("cache_policy", ["recompute", "keep"])
def test_after_a_swap_new_requests_equal_a_cold_engine(tied: bool, cache_policy: str) -> None:
    old, new = policies(tied)
    batch = requests(12, stop=True)
    engine = TorchEngine(old, OPTIONS.model_copy(update={"cache_policy": cache_policy}))
    # Some rows run, some requests are ready (their prompts' keys computed) and wait.
    for request in batch:
        engine.submit(replace(request, id=request.id + 100, max_new_tokens=30, stop_ids=()))
    for _ in range(10):
        engine.step()
    for request in batch:
        engine.cancel(request.id + 100)
    publish(engine, 1, weights(new))
    warm, cold = generate(engine, batch), generate(TorchEngine(new, OPTIONS), batch)
    for i, completion in cold.items():
        assert warm[i].tokens.tolist() == completion.tokens.tolist()
        np.testing.assert_array_equal(warm[i].logp, completion.logp)
        assert set(warm[i].versions.tolist()) == {1}


@pytest.mark.parametrize("cache_policy", ["recompute", "keep"])
def test_waiting_requests_start_under_the_weights_that_are_served_then(cache_policy: str) -> None:
    old, new = policies()
    engine = TorchEngine(old, OPTIONS.model_copy(update={"cache_policy": cache_policy, "slots": 2}))
    batch = [replace(r, prompt=np.arange(3, 12 + r.id, dtype=np.int32), max_new_tokens=3 if r.id == 0 else 6) for r in requests(6)]
    for request in batch:
        engine.submit(request)
    # Request 0 ends, 2 starts; 3 was made ready with it (its prompt's keys are computed) and waits for a place.
    done = {c.id: c for _ in range(5) for c in engine.step()}
    publish(engine, 1, weights(new))
    done |= drain(engine, 5)
    assert [done[i].versions.tolist() for i in range(6)] == [[0] * 3, [0] * 5 + [1], [0] * 2 + [1] * 4, [1] * 6, [1] * 6, [1] * 6]
    for request in batch[3:]:
        np.testing.assert_allclose(done[request.id].logp, score_whole(new.model, request.prompt, done[request.id].tokens), rtol=1e-6)


def test_rows_that_span_versions_recompute_their_cache() -> None:
    old, new = policies()
    batch = [replace(r, max_new_tokens=24) for r in requests(6)]
    engine = TorchEngine(old, OPTIONS)
    for request in batch:
        engine.submit(request)
    for _ in range(9):
        engine.step()
    publish(engine, 5, weights(new))
    done = drain(engine, 6)
    for request in batch:
        before = 9 if request.id < 4 else 0  # four places: the last two start after the swap
        tokens, logp = sample_alone([old.model] * before + [new.model], request)
        assert done[request.id].tokens.tolist() == tokens
        np.testing.assert_allclose(done[request.id].logp, logp, rtol=1e-6)
        assert done[request.id].versions.tolist() == [0] * before + [5] * (24 - before)
        assert done[request.id].versions.dtype == np.int32


def test_keep_goes_on_with_the_old_keys() -> None:
    old, new = policies()
    request = replace(requests(1)[0], max_new_tokens=20)
    engine = TorchEngine(old, OPTIONS.model_copy(update={"cache_policy": "keep"}))
    engine.submit(request)
    for _ in range(8):
        engine.step()
    publish(engine, 1, weights(new))
    done = drain(engine, 1)[0]
    # Transformers' own cache, filled by the old weights and read by the new ones.
    ids = torch.from_numpy(np.concatenate([request.prompt, done.tokens]).astype(np.int64))[None]
    seen = len(request.prompt) + 7  # the last token that the old weights took in
    with torch.no_grad():
        cache = old.model(ids[:, :seen], use_cache=True).cache
        logp = new.model(ids[:, seen:-1], cache=cache).logits[0].log_softmax(-1)
    expected = logp.gather(-1, ids[0, seen + 1 :, None])[:, 0].numpy()
    np.testing.assert_allclose(done.logp[8:], expected, rtol=1e-6)
    assert np.abs(done.logp - score_whole(new.model, request.prompt, done.tokens))[8:].max() > 1e-3


def test_two_swaps_between_two_steps_leave_no_trace_of_the_first() -> None:
    old, new = policies()
    third = tiny_policy(dtype=torch.float64, seed=2)
    engine = TorchEngine(old, OPTIONS)
    request = replace(requests(1)[0], max_new_tokens=10)
    engine.submit(request)
    for _ in range(4):
        engine.step()
    publish(engine, 1, weights(third))
    publish(engine, 2, weights(new))
    done = drain(engine, 1)[0]
    assert done.versions.tolist() == [0] * 4 + [2] * 6
    assert done.tokens.tolist() == sample_alone([old.model] * 4 + [new.model], request)[0]


def test_staging_and_aborting_leave_the_served_weights_alone() -> None:
    old, new = policies()
    batch = requests(8)
    undisturbed = generate(TorchEngine(old, OPTIONS), batch)
    engine = TorchEngine(old, OPTIONS)
    for request in batch:
        engine.submit(request)
    done = {}
    for i in range(400):
        if i % 3 == 0:
            engine.stage(1, 0, weights(new))
        if i % 3 == 2:
            engine.abort()
        done.update((c.id, c) for c in engine.step())
    assert {i: c.tokens.tolist() for i, c in done.items()} == {i: c.tokens.tolist() for i, c in undisturbed.items()}
    assert engine.version == 0


def test_a_commit_needs_what_it_names_to_be_staged() -> None:
    old, new = policies()
    engine = TorchEngine(old, OPTIONS)
    with pytest.raises(TrimtabError, match="version 1 refused: nothing is staged"):
        engine.commit(1)
    engine.stage(1, 0, weights(new))
    with pytest.raises(TrimtabError, match="version 2 refused: version 1 is staged"):
        engine.commit(2)
    engine.abort()
    with pytest.raises(TrimtabError, match="nothing is staged"):
        engine.commit(1)
    engine.stage(1, 0, weights(new))
    engine.commit(1)
    with pytest.raises(TrimtabError, match="nothing is staged"):  # not twice
        engine.commit(1)
    assert engine.version == 1


NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda w: w.pop(NAME), NAME),
        (lambda w: w.update({NAME: w[NAME][:-1]}), NAME + ".*shape"),
        (lambda w: w.update({NAME: w[NAME].float()}), NAME + ".*float32"),
        (lambda w: w.update({"model.extra": w[NAME]}), "model.extra"),
        (lambda w: w.clear(), "tensors are missing"),
    ],
)
def test_a_partial_publication_names_the_tensor_and_leaves_the_old_one_serving(spoil: object, message: str) -> None:
    old, new = policies()
    engine = TorchEngine(old, OPTIONS)
    engine.stage(1, 0, weights(new))
    broken = weights(new)
    spoil(broken)  # type: ignore[operator]
    with pytest.raises(TrimtabError, match=message):
        engine.stage(2, 0, broken)
    for version in (1, 2):  # what was staged before is forgotten too
        with pytest.raises(TrimtabError, match="nothing is staged"):
            engine.commit(version)
    batch = requests(3)
    assert {i: c.tokens.tolist() for i, c in generate(engine, batch).items()} == {
        i: c.tokens.tolist() for i, c in generate(TorchEngine(old, OPTIONS), batch).items()
    }


def test_a_tied_head_moves_with_the_embedding() -> None:
    old, new = policies(tied=True)
    engine = TorchEngine(old, OPTIONS)
    state = dict(new.model.state_dict())
    assert "lm_head.weight" in state  # a state dict names the tied tensor twice
    assert "lm_head.weight" not in weights(new)
    publish(engine, 1, state)
    batch = requests(4)
    done = generate(engine, batch)
    for request in batch:
        np.testing.assert_allclose(done[request.id].logp, score_whole(new.model, request.prompt, done[request.id].tokens), rtol=1e-6)
    publish(engine, 2, weights(old))
    for completion in generate(engine, batch).values():
        assert completion.versions.tolist() == [2] * len(completion.tokens)
    state["lm_head.weight"] = state["lm_head.weight"] + 1
    with pytest.raises(TrimtabError, match=r"lm_head\.weight is tied to model\.embed_tokens\.weight"):
        engine.stage(3, 0, state)


def test_the_published_tensors_may_change_after_staging() -> None:
    old, new = policies()
    engine = TorchEngine(old, OPTIONS)
    mapping = {name: tensor.clone() for name, tensor in weights(new).items()}
    publish(engine, 1, mapping)
    for tensor in mapping.values():
        tensor.zero_()
    batch = requests(3)
    assert generate(engine, batch)[0].tokens.tolist() == generate(TorchEngine(new, OPTIONS), batch)[0].tokens.tolist()


def test_a_row_across_a_restore_keeps_the_dead_incarnation() -> None:
    old, new = policies()
    engine = TorchEngine(old, OPTIONS)
    batch = [replace(r, max_new_tokens=6) for r in requests(2)]
    engine.submit(batch[0])
    engine.step()
    publish(engine, 0, weights(new), incarnation=1)
    engine.submit(batch[1])
    done = drain(engine, 2)
    assert (engine.version, engine.incarnation) == (0, 1)
    assert done[0].incarnation == 0  # its first token is of weights that are no more: whoever reads it can refuse it
    assert done[1].incarnation == 1


class TestDigest:
    def test_depends_on_every_name_dtype_shape_and_byte(self) -> None:
        base = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}
        variants = [
            base,
            {"a": base["a"], "c": base["b"]},
            {"a": base["a"].view(3, 2), "b": base["b"]},
            {"a": base["a"], "b": base["b"].int()},
            {"a": base["a"], "b": torch.ones(4).index_fill(0, torch.tensor([3]), 1 + 2**-20)},
            {"a": base["a"]},
            {"a": base["b"], "b": base["a"]},
        ]
        digests = [weights_digest(v) for v in variants]
        assert len(set(digests)) == len(variants)

    def test_does_not_depend_on_order_layout_or_gradient(self) -> None:
        a, b = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)), torch.tensor(2.0).bfloat16()
        digest = weights_digest({"a": a, "b": b})
        assert weights_digest({"b": b, "a": a.T.contiguous().T.requires_grad_()}) == digest
        assert len(digest) == 32
