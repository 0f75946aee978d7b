"""Packed forward and backward against the padded Hugging Face model."""

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from support.rollouts import ragged, rollout, segment
from support.tiny import tiny_policy
from trimtab.learner.attention import NAME, packed_attention
from trimtab.learner.layout import BlockLayout
from trimtab.learner.packing import pack
from trimtab.learner.passes import PackedModel
from trimtab.records import Rollout, TrimtabError


def padded_logp(model: PreTrainedModel, rollouts: list[Rollout], temperature: float) -> torch.Tensor:
    """Log-probs of the action tokens from one right-padded batch with a mask, the way transformers' users compute them."""
    segments = [s for r in rollouts for s in r.segments]
    width = max(len(s.tokens) for s in segments)
    ids = torch.zeros(len(segments), width, dtype=torch.int64)
    mask = torch.zeros(len(segments), width, dtype=torch.int64)
    for i, s in enumerate(segments):
        ids[i, : len(s.tokens)] = torch.from_numpy(s.tokens.astype(np.int64))
        mask[i, : len(s.tokens)] = 1
    logp = torch.log_softmax(model(input_ids=ids, attention_mask=mask).logits[:, :-1] / temperature, -1)
    logp = logp.gather(2, ids[:, 1:, None])[..., 0]
    return torch.cat([logp[i, np.flatnonzero(s.action_mask) - 1] for i, s in enumerate(segments)])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_log_probs_equal_the_padded_model(tied: bool, kv_heads: int, dtype: torch.dtype, tolerance: float) -> None:
    model = tiny_policy(tied, kv_heads=kv_heads, dtype=dtype, sharpness=1.0).model
    rollouts = ragged(np.random.default_rng(0), 9, temperature=0.8)
    want = padded_logp(model, rollouts, 0.8).detach()
    p = PackedModel(model).forward(pack(rollouts))
    torch.testing.assert_close(p.current_N, want, rtol=tolerance, atol=tolerance)
    assert not p.current_N.requires_grad


@pytest.mark.parametrize("tied", [False, True])
def test_backward_equals_autograd_of_the_padded_model(tied: bool) -> None:
    model = tiny_policy(tied, dtype=torch.float64, sharpness=1.0).model
    rollouts = ragged(np.random.default_rng(1), 7)
    want = padded_logp(model, rollouts, 1.0)
    d = torch.randn(want.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (want * d).sum().backward()
    expected = {n: p.grad for n, p in model.named_parameters()}
    model.zero_grad()
    p = PackedModel(model).forward(pack(rollouts), vocab=True)
    p.backward(d)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-10, atol=1e-12, msg=name)


def test_gradients_accumulate_over_micro_batches() -> None:
    """Invariant 3: any split into micro-batches gives the same gradient."""
    model = tiny_policy(dtype=torch.float64).model
    rollouts = ragged(np.random.default_rng(2), 6)
    runner = PackedModel(model)

    def gradient(split: list[list[Rollout]]) -> list[torch.Tensor]:
        model.zero_grad()
        for part in split:
            packed = pack(part)
            runner.forward(packed).backward(packed.behavior_N.double())
        return [p.grad.clone() for p in model.parameters()]

    whole = gradient([rollouts])
    for split in ([rollouts[:2], rollouts[2:]], [[r] for r in rollouts]):
        for a, b in zip(gradient(split), whole, strict=True):
            assert (a - b).norm() <= 1e-10 * b.norm()


def test_score_is_the_forward_without_a_graph() -> None:
    model = tiny_policy().model
    packed = pack(ragged(np.random.default_rng(0), 4))
    runner = PackedModel(model)
    assert torch.equal(runner.score(packed), runner.forward(packed).current_N)


def test_no_intermediate_of_size_total_by_total() -> None:
    """64 segments of 32 rows: the largest tensor of attention is heads x rows x 32, not rows x rows."""
    layout = BlockLayout([32] * 64)
    q = torch.randn(1, 2, layout.rows, 4)
    with torch.profiler.profile(profile_memory=True, record_shapes=True) as profile:
        packed_attention(torch.nn.Module(), q, q, q, None, scaling=0.5, layout=layout)
    largest = max(abs(e.self_cpu_memory_usage) for e in profile.events())
    assert 0 < largest < layout.rows * layout.rows * 4 / 8


def test_without_a_layout_the_model_attends_as_transformers_does() -> None:
    model = tiny_policy(dtype=torch.float64).model
    ids = torch.tensor([[1, 4, 5, 6], [0, 0, 1, 4]])
    mask = (ids != 0).long()
    want = model(input_ids=ids, attention_mask=mask).logits
    PackedModel(model)
    assert model.config._attn_implementation == NAME
    torch.testing.assert_close(model(input_ids=ids, attention_mask=mask).logits[mask.bool()], want[mask.bool()], rtol=1e-12, atol=1e-12)


def test_sliding_windows_and_dropout_are_refused_by_name() -> None:
    model = tiny_policy().model
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(TrimtabError, match="layer 1 is not full attention"):
        PackedModel(model)
    model = tiny_policy().model
    model.config.attention_dropout = 0.1
    with pytest.raises(TrimtabError, match=r"config.attention_dropout = 0\.1"):
        PackedModel(model)


def test_an_entropy_coefficient_needs_vocab() -> None:
    rng = np.random.default_rng(0)
    packed = pack([rollout(segment(rng, "..aa"))])
    p = PackedModel(tiny_policy().model).forward(packed)
    with pytest.raises(RuntimeError, match="vocab=True"):
        p.backward(torch.ones(2), torch.ones(2))
