"""Estimated norms: the LM head's exactly, the sketch without bias, and a re-weighted gradient that is none the worse for either."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from support.rollouts import naive_logp, ragged, rollout, segment
from support.tiny import tiny_policy
from trimtab.control.points import NormEstimator
from trimtab.learner.norms import estimate, top
from trimtab.learner.norms.estimate import Shape, sketched
from trimtab.learner.packing import pack
from trimtab.learner.passes import PackedModel
from trimtab.records import Rollout

ESTIMATORS: tuple[NormEstimator, ...] = ("last_layer", "sketch")
MLP = [f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up", "down")]


def naive(model: nn.Module, rollouts: list[Rollout], q: list[Tensor]) -> dict[str, Tensor]:
    """Every rollout's own gradient of sum q current, parameter by parameter, [R, ...]."""
    names, parameters = zip(*((n, p) for n, p in model.named_parameters() if p.requires_grad), strict=True)
    rows = []
    for r, q_i in zip(rollouts, q, strict=True):
        if len(q_i):
            rows.append(torch.autograd.grad((naive_logp(model, r) * q_i).sum(), parameters))
        else:
            rows.append(tuple(torch.zeros_like(p) for p in parameters))
    return {n: torch.stack(g) for n, g in zip(names, zip(*rows, strict=True), strict=True)}


def squared(g: Tensor) -> Tensor:
    return g.double().flatten(1).square().sum(1)


@pytest.fixture
def batch() -> tuple[list[Rollout], list[Tensor]]:
    rollouts = [*ragged(np.random.default_rng(0), 9, temperature=0.7), rollout(segment(np.random.default_rng(1), "..."))]
    g = torch.Generator().manual_seed(0)
    return rollouts, [torch.rand(r.actions, generator=g, dtype=torch.float64) + 0.1 for r in rollouts]


def measured(runner: PackedModel, rollouts: list[Rollout], q: list[Tensor]) -> Tensor:
    nothing = torch.zeros(len(rollouts), dtype=torch.float64)
    return runner.forward(pack(rollouts), norms=True).norms(torch.cat(q), nothing, nothing, nothing.long())


@pytest.mark.parametrize("logits", [2**22, 60], ids=["whole", "chunked"])
@pytest.mark.parametrize("frozen", [(), ("lm_head",), ("model",)])
def test_last_layer_is_the_exact_norm_of_the_head(batch, logits: int, frozen: tuple[str, ...]) -> None:
    model = tiny_policy(False, dtype=torch.float64, sharpness=1.0).model
    want = squared(naive(model, *batch)["lm_head.weight"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen) if frozen else True)
    runner = PackedModel(model, estimator="last_layer", logits=logits, memory=0 if logits == 60 else 2**20)
    torch.testing.assert_close(measured(runner, *batch), want, rtol=1e-6, atol=0)  # Qwen2's norm rounds to float32 inside
    assert want[-1] == 0


def test_the_head_of_a_tied_weight_is_its_output_side(batch) -> None:
    model = tiny_policy(True, dtype=torch.float64, sharpness=1.0).model
    got = measured(PackedModel(model, estimator="last_layer"), *batch)
    embedding = model.model.embed_tokens.weight
    model.lm_head.weight = nn.Parameter(embedding.detach().clone())
    torch.testing.assert_close(got, squared(naive(model, *batch)["lm_head.weight"]), rtol=1e-6, atol=0)


def test_sketch_is_unbiased_over_what_it_reads(batch, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_policy(False, dtype=torch.float64, sharpness=1.0).model
    gradients = naive(model, *batch)
    want = sum(squared(gradients[name]) for name in ("lm_head.weight", *MLP))
    assert isinstance(want, Tensor)
    runs = []
    for seed in range(60):
        monkeypatch.setattr(top.zlib, "crc32", lambda name, seed=seed: hash((bytes(name), seed)) % 2**32)
        runs.append(measured(PackedModel(model, estimator="sketch", depth=3), *batch))
    ratio = (torch.stack(runs)[:, :-1] / want[:-1]).log()
    assert float(ratio.abs().max()) > 0.02
    torch.testing.assert_close(torch.stack(runs).mean(0), want, rtol=0.1, atol=0)
    assert float(ratio.std()) < 0.4
    assert float(torch.stack(runs)[:, -1].abs().max()) == 0


def test_sketch_repeats_in_every_process(batch) -> None:
    model = tiny_policy(False, dtype=torch.float64).model
    assert torch.equal(*(measured(PackedModel(model, estimator="sketch", depth=3), *batch) for _ in range(2)))


def test_sketch_of_a_frozen_trunk_reads_what_has_a_graph(batch) -> None:
    model = tiny_policy(False, dtype=torch.float64).model
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lm_head" in name)
    head, sketch = (measured(PackedModel(model, estimator=e, depth=3), *batch) for e in ESTIMATORS)
    assert torch.equal(sketch, head)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("tied", [False, True])
def test_the_reweighted_gradient_is_the_ordinary_one(batch, estimator: NormEstimator, tied: bool) -> None:
    rollouts, q = batch
    model = tiny_policy(tied, dtype=torch.float64, sharpness=1.0).model
    c_R = torch.linspace(-1, 2, len(rollouts), dtype=torch.float64)
    packed = pack(rollouts)
    d_N, h_N = torch.linspace(-1, 1, len(packed.rollout_N), dtype=torch.float64), torch.ones(len(packed.rollout_N), dtype=torch.float64)

    def gradient(runner: PackedModel, norms: bool) -> list[Tensor]:
        model.zero_grad()
        p = runner.forward(packed, norms=norms, vocab=True)
        p.backward(d_N, h_N)  # an additive term comes first
        if norms:
            p.norms(torch.cat(q), c_R, c_R, c_R.long())
            p.finish(c_R)
        else:
            runner.forward(packed).backward(c_R[packed.rollout_N] * torch.cat(q))
        return [x.grad.clone() for x in model.parameters()]

    plain = gradient(PackedModel(model), False)
    for got, want in zip(gradient(PackedModel(model, estimator=estimator, depth=3), True), plain, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_modules_that_exact_norms_do_not_know_are_no_obstacle(batch) -> None:
    model = tiny_policy(False, dtype=torch.float64).model
    model.model.layers[0].mlp.act_fn = nn.PReLU(dtype=torch.float64)
    for estimator in ESTIMATORS:
        assert bool((measured(PackedModel(model, estimator=estimator, depth=3), *batch)[:-1] > 0).all())


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_norms_come_once_and_first(batch, estimator: NormEstimator) -> None:
    rollouts, q = batch
    p = PackedModel(tiny_policy(False, dtype=torch.float64).model, estimator=estimator).forward(pack(rollouts), norms=True)
    nothing = torch.zeros(len(rollouts), dtype=torch.float64)
    with pytest.raises(RuntimeError, match="norms first"):
        p.finish(nothing)
    p.norms(torch.cat(q), nothing, nothing, nothing.long())
    with pytest.raises(RuntimeError, match="already measured"):
        p.norms(torch.cat(q), nothing, nothing, nothing.long())


def test_a_sketch_reads_what_its_share_pays_for() -> None:
    """Nothing in a narrow model, a few Linears of a wide one, some blocks of a deep one; more of it where the share grows."""

    def block(d: int) -> list[Shape]:
        return [Shape(d, d)] * 4 + [Shape(d, 3 * d)] * 2 + [Shape(3 * d, d)]

    assert sketched(2 * block(64), 2624, 4) == 0
    assert 1 <= sketched(4 * block(256), 2624, 4) <= 3
    assert 14 <= sketched(28 * block(1536), 8192, 4) <= 35
    assert sketched([], 100, 4) == 0


def test_a_larger_share_reads_more(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [Shape(256, 256)] * 28
    few = sketched(shapes, 2624, 4)
    monkeypatch.setattr(estimate, "SKETCH_SHARE", 10.0)
    assert sketched(shapes, 2624, 4) == 28 > few
