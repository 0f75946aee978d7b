"""All three routes against one ordinary backward per rollout: norms, re-weighted gradients, and what must not disturb them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import PreTrainedModel

from support.rollouts import naive_logp, ragged, rollout, segment
from support.tiny import tiny_policy
from trimtab.learner.norms import units
from trimtab.learner.norms.estimate import Mode, Route
from trimtab.learner.packing import pack
from trimtab.learner.passes import PackedModel
from trimtab.records import Rollout, TrimtabError

ROUTES: tuple[Route, ...] = ("bookkeeping", "two_pass", "two_buffer")


@dataclass
class Problem:
    """A batch with a token-level unit coefficient, and a final coefficient that is affine in the reward within each group."""

    rollouts: list[Rollout]
    q: list[Tensor]
    group_R: Tensor
    reward_R: Tensor
    pre_R: Tensor
    c_R: Tensor

    @property
    def q_N(self) -> Tensor:
        return torch.cat(self.q)

    def naive(self, model: PreTrainedModel) -> tuple[Tensor, dict[str, Tensor]]:
        """(norm2_R, gradient of sum_R c_R sum q current) from one backward per rollout."""
        trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
        norms = torch.zeros(len(self.rollouts), dtype=torch.float64)
        total = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in trainable.items()}
        for i, (r, q) in enumerate(zip(self.rollouts, self.q, strict=True)):
            if not len(q):
                continue
            gradient = torch.autograd.grad((naive_logp(model, r) * q).sum(), list(trainable.values()))
            norms[i] = sum(g.double().square().sum() for g in gradient)
            for n, g in zip(trainable, gradient, strict=True):
                total[n] += self.c_R[i] * g.double()
        return norms, total

    def check(self, model: PreTrainedModel, runner: PackedModel, norms: float, gradients: float) -> None:
        want_norm2, want = self.naive(model)
        model.zero_grad()
        p = runner.forward(pack(self.rollouts), norms=True)
        norm2_R = p.norms(self.q_N, self.pre_R, self.reward_R, self.group_R)
        assert norm2_R.dtype == torch.float64
        torch.testing.assert_close(norm2_R.sqrt(), want_norm2.sqrt(), rtol=norms, atol=0)
        assert all(parameter.grad is None for parameter in model.parameters())
        p.finish(self.c_R)
        overall = torch.stack([g.norm() for g in want.values()]).norm()
        for n, parameter in model.named_parameters():
            if parameter.requires_grad:  # what is zero up to rounding (queries that see one key) is measured against the whole
                assert (parameter.grad - want[n]).norm() <= gradients * want[n].norm() + 1e-14 * overall, n


def problem(rollouts: list[Rollout], dtype: torch.dtype = torch.float64, seed: int = 0) -> Problem:
    g = torch.Generator().manual_seed(seed)
    n = len(rollouts)
    group_R = torch.arange(n) // 3
    reward_R = torch.randn(n, generator=g, dtype=torch.float64)
    pre_R = torch.rand(n, generator=g, dtype=torch.float64) + 0.5
    alpha, beta = torch.randn(2, n, generator=g, dtype=torch.float64)
    q = [torch.rand(r.actions, generator=g, dtype=dtype) + 0.1 for r in rollouts]
    return Problem(rollouts, q, group_R, reward_R, pre_R, pre_R * (alpha[group_R] + beta[group_R] * reward_R))


def model_of(tied: bool, dtype: torch.dtype, norm: str = "rms") -> PreTrainedModel:
    """A tiny Qwen2. Its own RMSNorm rounds to float32 inside, so float64 is exact only with torch's norms in its place."""
    model = tiny_policy(tied, dtype=dtype, sharpness=1.0).model
    if norm != "qwen2":
        g = torch.Generator().manual_seed(3)
        holders = [(layer, name) for layer in model.model.layers for name in ("input_layernorm", "post_attention_layernorm")]
        for holder, name in [*holders, (model.model, "norm")]:
            module = nn.RMSNorm(32, eps=1e-6, dtype=dtype) if norm == "rms" else nn.LayerNorm(32, dtype=dtype)
            for parameter in module.parameters():
                parameter.data += 0.1 * torch.randn(32, generator=g, dtype=dtype)
            setattr(holder, name, module)
    return model


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_float64_norms_and_gradients(route: Route, tied: bool, norm: str) -> None:
    """Ragged, multi-turn, two segments, biases, GQA, temperature, a padding id among the tokens."""
    model = model_of(tied, torch.float64, norm)
    rollouts = ragged(np.random.default_rng(0), 9, temperature=0.7)
    problem(rollouts).check(model, PackedModel(model, route=route), 1e-12, 1e-12)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("tied", [False, True])
def test_float32_norms_and_gradients_of_qwen2(route: Route, tied: bool) -> None:
    model = model_of(tied, torch.float32, "qwen2")
    rollouts = ragged(np.random.default_rng(1), 12)
    problem(rollouts, torch.float32).check(model, PackedModel(model, route=route), 1e-5, 1e-5)


@pytest.mark.parametrize("route", ROUTES)
def test_qwen2_norms_in_float64(route: Route) -> None:
    """Qwen2's RMSNorm rounds its backward to float32, so an ordinary backward of other coefficients differs in the 7th digit."""
    model = model_of(True, torch.float64, "qwen2")
    problem(ragged(np.random.default_rng(2), 6)).check(
        model, PackedModel(model, route=route), 1e-12, 1e-6 if route == "two_pass" else 1e-12
    )


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("logits", [2**22, 60], ids=["whole", "chunked"])
@pytest.mark.parametrize("tied", [False, True])
def test_every_mode_of_a_layer_and_of_the_head(mode: Mode, logits: int, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "choose_mode", lambda *_, **__: mode)
    monkeypatch.setattr(units, "_SCRATCH", 3 * 32 * 64 * 8)
    model = model_of(tied, torch.float64)
    memory = 0 if mode is Mode.GRAM else 2**20
    rollouts = ragged(np.random.default_rng(4), 8, temperature=1.2, cut=True)
    problem(rollouts).check(model, PackedModel(model, route="bookkeeping", memory=memory, logits=logits), 1e-12, 1e-12)


@given(st.lists(st.text("a.", min_size=0, max_size=6), min_size=1, max_size=6), st.sampled_from(ROUTES), st.booleans(), st.integers(0, 9))
@settings(max_examples=15, deadline=None)
def test_any_masks(masks: list[str], route: Route, tied: bool, seed: int) -> None:
    """Rollouts of any shape: no action, one action, gaps, trailing context; pairs share a rollout."""
    rng = np.random.default_rng(seed)
    segments = [segment(rng, "." + m) for m in masks] + [segment(rng, ".a")]
    rollouts = [rollout(*segments[i : i + 1 + i % 2]) for i in range(len(segments))]
    model = model_of(tied, torch.float64)
    problem(rollouts, seed=seed).check(model, PackedModel(model, route=route), 1e-11, 1e-11)


def test_a_rollout_without_actions_has_norm_zero() -> None:
    rng = np.random.default_rng(0)
    model = model_of(False, torch.float64)
    rollouts = [rollout(segment(rng, "...")), rollout(segment(rng, "..aa"))]
    for route in ROUTES:
        p = PackedModel(model, route=route).forward(pack(rollouts), norms=True)
        norm2_R = p.norms(torch.ones(2), torch.ones(2), torch.ones(2), torch.zeros(2, dtype=torch.int64))
        assert norm2_R[0] == 0
        assert norm2_R[1] > 0


@pytest.mark.parametrize("route", ROUTES)
def test_additive_terms_come_first_and_gradients_add_up(route: Route) -> None:
    model = model_of(True, torch.float64)
    rollouts = ragged(np.random.default_rng(5), 5)
    it = problem(rollouts)
    packed, runner = pack(rollouts), PackedModel(model, route=route)
    d_N = torch.linspace(-1, 1, len(it.q_N), dtype=torch.float64)

    def gradient(step: Callable[[], None]) -> list[Tensor]:
        model.zero_grad()
        step()
        return [p.grad.clone() for p in model.parameters()]

    def additive() -> None:
        runner.forward(packed, vocab=True).backward(d_N, d_N.flip(0))

    def weighted() -> None:
        p = runner.forward(packed, norms=True)
        p.norms(it.q_N, it.pre_R, it.reward_R, it.group_R)
        p.finish(it.c_R)

    def both() -> None:
        p = runner.forward(packed, norms=True, vocab=True)
        p.backward(d_N, d_N.flip(0))
        p.norms(it.q_N, it.pre_R, it.reward_R, it.group_R)
        p.finish(it.c_R)

    for a, b, c in zip(gradient(additive), gradient(weighted), gradient(both), strict=True):
        torch.testing.assert_close(a + b, c, rtol=1e-10, atol=1e-12)


def test_two_passes_may_be_open_at_once() -> None:
    """Their kept per-rollout gradients must not share a buffer."""
    model = model_of(False, torch.float64)
    runner = PackedModel(model, route="bookkeeping")
    halves = [problem(ragged(np.random.default_rng(s), 4), seed=s) for s in (6, 7)]
    want = [half.naive(model)[1] for half in halves]
    for _ in range(2):  # the second round reuses the buffers of the first
        model.zero_grad()
        passes = [runner.forward(pack(half.rollouts), norms=True) for half in halves]
        for p, half in zip(passes, halves, strict=True):
            p.norms(half.q_N, half.pre_R, half.reward_R, half.group_R)
        for p, half in zip(passes, halves, strict=True):
            p.finish(half.c_R)
        for n, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, want[0][n] + want[1][n], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("frozen", ["embed_tokens", "lm_head", "mlp", "norm", "bias", "layers.0", "model"])
def test_norms_are_over_trainable_parameters_only(route: Route, frozen: str) -> None:
    model = model_of(False, torch.float64)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen not in name)
    problem(ragged(np.random.default_rng(8), 5)).check(model, PackedModel(model, route=route), 1e-12, 1e-12)


def test_a_frozen_unknown_module_is_no_obstacle() -> None:
    model = model_of(False, torch.float64)
    for layer in model.model.layers:
        layer.mlp.act_fn = nn.PReLU(dtype=torch.float64).requires_grad_(False)
    problem(ragged(np.random.default_rng(9), 4)).check(model, PackedModel(model, route="bookkeeping"), 1e-12, 1e-12)


def test_gains_shared_over_heads_sum_over_them() -> None:
    """Query and key norms, as newer models of the family have them: [1, rows, heads, d] through one gain of size d."""

    class Normed(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner
            self.gain = nn.RMSNorm(8, eps=1e-6, dtype=torch.float64)
            self.gain.weight.data += 0.1 * torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

        def forward(self, x: Tensor) -> Tensor:
            return self.gain(self.inner(x).unflatten(-1, (-1, 8))).flatten(-2)

    model = model_of(False, torch.float64)
    for layer in model.model.layers:
        layer.self_attn.q_proj = Normed(layer.self_attn.q_proj)
    problem(ragged(np.random.default_rng(10), 5)).check(model, PackedModel(model, route="bookkeeping"), 1e-12, 1e-12)


def test_two_buffer_refuses_a_credit_it_cannot_form() -> None:
    model = model_of(False, torch.float64)
    it = problem(ragged(np.random.default_rng(11), 6))
    p = PackedModel(model, route="two_buffer").forward(pack(it.rollouts), norms=True)
    p.norms(it.q_N, it.pre_R, it.reward_R, it.group_R)
    with pytest.raises(TrimtabError, match="coefficients of group 0 are not affine in the reward"):
        p.finish(it.c_R + torch.tensor([0, 1, 0, 0, 0, 0], dtype=torch.float64))


def test_two_buffer_with_equal_rewards_in_a_group() -> None:
    model = model_of(False, torch.float64)
    it = problem(ragged(np.random.default_rng(12), 6))
    it.reward_R = torch.tensor([1.0, 1, 1, 0, 1, 0], dtype=torch.float64)
    it.c_R = it.pre_R * torch.tensor([0.5, 0.5, 0.5, -1, 2, -1], dtype=torch.float64)
    it.check(model, PackedModel(model, route="two_buffer"), 1e-12, 1e-10)


def test_norms_and_finish_need_their_forward() -> None:
    model = model_of(False, torch.float64)
    it = problem(ragged(np.random.default_rng(0), 3))
    plain = PackedModel(model).forward(pack(it.rollouts))
    with pytest.raises(RuntimeError, match="norms=True"):
        plain.norms(it.q_N, it.pre_R, it.reward_R, it.group_R)
    p = PackedModel(model, route="bookkeeping").forward(pack(it.rollouts), norms=True)
    with pytest.raises(RuntimeError, match="norms first"):
        p.finish(it.c_R)
    p.norms(it.q_N, it.pre_R, it.reward_R, it.group_R)
    with pytest.raises(RuntimeError, match="already measured"):
        p.norms(it.q_N, it.pre_R, it.reward_R, it.group_R)
    p.finish(it.c_R)
    with pytest.raises(RuntimeError, match="has given its gradient"):
        p.finish(it.c_R)
