"""Narrow weights are stepped on float32 masters: parity with torch's AdamW on float32, exact resumes, and the share that moves."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from support.updates import make_batch, make_learner, tiny_model
from trimtab.learner.moved import Sample
from trimtab.learner.optimizer import ScheduledAdamW
from trimtab.learner.optimizer_options import AdamWOptions, ConstantOptions, WSDOptions
from trimtab.learner.update import Learner

NARROW = [torch.bfloat16, torch.float16]


def weights(dtype: torch.dtype, seed: int = 0, shapes: tuple[tuple[int, ...], ...] = ((40, 30), (30,), (7, 11))) -> list[nn.Parameter]:
    """Of the size that language models have: 0.02."""
    g = torch.Generator().manual_seed(seed)
    return [nn.Parameter((0.02 * torch.randn(shape, generator=g)).to(dtype)) for shape in shapes]


def draw(ps: list[nn.Parameter], seed: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=g).to(p.dtype) for p in ps]


def give(ps: list[nn.Parameter], gradients: list[Tensor]) -> None:
    for p, gradient in zip(ps, gradients, strict=True):
        p.grad = gradient.clone()


def stepped(optimizer: ScheduledAdamW, gradients: list[Tensor], multiplier: float = 1.0) -> tuple[float, float]:
    give(optimizer.parameters, gradients)
    optimizer.collect()
    found = optimizer.step(multiplier)
    optimizer.zero_grad()
    return found.moved, found.moved_masters


def direction(state: dict[str, Tensor], t: int) -> Tensor:
    """m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps), flat: the step of one tensor at lr 1, from what AdamW keeps of it."""
    m, v = state["exp_avg"].double(), state["exp_avg_sq"].double()
    return ((m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)).flatten()


@settings(deadline=None, max_examples=25)
@given(
    dtype=st.sampled_from(NARROW),
    lr=st.floats(1e-7, 1e-2),
    decay=st.floats(0, 0.5),
    multipliers=st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=6),
    seed=st.integers(0, 100),
)
def test_the_masters_are_what_adamw_makes_of_float32(
    dtype: torch.dtype, lr: float, decay: float, multipliers: list[float], seed: int
) -> None:
    options = AdamWOptions(lr=lr, weight_decay=decay)
    ps = weights(dtype, seed)
    wide = [nn.Parameter(p.detach().float()) for p in ps]
    ours = ScheduledAdamW(ps, options, ConstantOptions())
    theirs = torch.optim.AdamW(wide, lr=lr, betas=options.betas, eps=options.eps, weight_decay=decay, fused=True)
    for t, multiplier in enumerate(multipliers):
        gradients = draw(ps, seed + t)
        give(ps, gradients)
        ours.collect()
        assert all(p.grad is None for p in ps)
        norm = ours.update_norm()
        give(wide, [g.float() for g in gradients])
        for group in theirs.param_groups:
            group["lr"] = lr * multiplier
        theirs.step()
        assert norm == pytest.approx(lr * float(torch.cat([direction(theirs.state[w], t + 1) for w in wide]).norm()), rel=1e-5)
        ours.step(multiplier)
        ours.zero_grad()
        for p, master, w in zip(ps, ours.masters, wide, strict=True):
            assert master.dtype == torch.float32
            assert torch.equal(master, w)
            assert torch.equal(p, w.to(dtype))


def test_wide_parameters_are_their_own_masters() -> None:
    for dtype in (torch.float32, torch.float64):
        ps = weights(dtype)
        optimizer = ScheduledAdamW(ps, AdamWOptions(), ConstantOptions())
        assert all(m is p for m, p in zip(optimizer.masters, ps, strict=True))
        give(ps, draw(ps, 1))
        before = [p.grad for p in ps]
        optimizer.collect()
        assert all(p.grad is g for p, g in zip(ps, before, strict=True))
        assert "masters" not in optimizer.state_dict()


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    (p,) = ps = weights(torch.bfloat16, shapes=((3,),))
    optimizer = ScheduledAdamW(ps, AdamWOptions(), ConstantOptions())
    for _ in range(1000):  # in bfloat16 the sum would stay at 256
        p.grad = torch.ones_like(p)
        optimizer.collect()
    assert optimizer.masters[0].grad is not None
    assert optimizer.masters[0].grad.tolist() == [1000.0] * 3


# ---------------------------------------------------------------------------------------------------------------- what moves


def test_at_a_learning_rate_of_1e_6_as_many_weights_move_as_in_float32() -> None:
    """Twenty steps. Stepping bfloat16 itself leaves nearly all of its weights as they are."""
    options = AdamWOptions(lr=1e-6)
    ps, shares, masters = {}, {}, {}
    for dtype in (torch.float32, torch.bfloat16):
        ps[dtype] = [nn.Parameter(p.detach().bfloat16().to(dtype)) for p in weights(torch.float32)]
        optimizer = ScheduledAdamW(ps[dtype], options, ConstantOptions())
        whole, published = Sample(optimizer.masters), Sample(optimizer.parameters)
        before, sent = whole.take(), published.take()
        for t in range(20):
            stepped(optimizer, draw(ps[torch.float32], t) if dtype == torch.float32 else [g.bfloat16() for g in draw(ps[torch.float32], t)])
        shares[dtype] = (whole.changed(before), published.changed(sent))
        masters[dtype] = torch.cat([m.detach().flatten() for m in optimizer.masters])
    alone = [nn.Parameter(p.detach().bfloat16()) for p in weights(torch.float32)]
    naive = torch.optim.AdamW(alone, lr=1e-6, weight_decay=0.1)
    watched = Sample(alone)
    start = watched.take()
    for t in range(20):
        give(alone, [g.bfloat16() for g in draw(ps[torch.float32], t)])
        naive.step()
    assert watched.changed(start) < 0.2
    assert shares[torch.float32][0] > 0.99
    assert shares[torch.bfloat16][0] == pytest.approx(shares[torch.float32][0], rel=0.1)
    first = torch.cat([p.detach().bfloat16().float().flatten() for p in weights(torch.float32)])
    moved = [masters[dtype] - first for dtype in (torch.float32, torch.bfloat16)]
    assert float((moved[0] - moved[1]).norm() / moved[0].norm()) < 0.02  # gradients were rounded to bfloat16, steps were not
    assert 0.0 < shares[torch.bfloat16][1] < 0.5  # what is published follows by and by


def test_the_shares_are_counted_bit_by_bit() -> None:
    ps = weights(torch.bfloat16)
    optimizer = ScheduledAdamW(ps, AdamWOptions(lr=2e-6, weight_decay=0.0), ConstantOptions())
    for t in range(4):
        gradients = draw(ps, t)
        gradients[1].zero_()  # a parameter that does not move
        before = [p.detach().view(torch.int16).numpy().copy() for p in ps], [m.detach().numpy().copy() for m in optimizer.masters]
        moved, masters = stepped(optimizer, gradients)
        total = sum(p.numel() for p in ps)
        changed = sum(int((b != p.detach().view(torch.int16).numpy()).sum()) for b, p in zip(before[0], ps, strict=True))
        wide = sum(
            int((b.view(np.int32) != m.detach().numpy().view(np.int32)).sum()) for b, m in zip(before[1], optimizer.masters, strict=True)
        )
        assert (moved, masters) == (changed / total, wide / total)
        assert 0 < changed < wide <= total - ps[1].numel()


def test_in_float32_the_two_shares_are_one() -> None:
    ps = weights(torch.float32)
    optimizer = ScheduledAdamW(ps, AdamWOptions(lr=1e-12, weight_decay=0.0), ConstantOptions())
    assert stepped(optimizer, draw(ps, 0)) == (pytest.approx(0.0, abs=0.01),) * 2  # a step of 1e-12 is lost in 0.02
    optimizer = ScheduledAdamW(ps, AdamWOptions(lr=1e-3), ConstantOptions())
    moved, masters = stepped(optimizer, draw(ps, 0))
    assert moved == masters > 0.99


@pytest.mark.parametrize("size", [1, 7, 100, 5000])
def test_a_sample_sees_every_s_th_weight_whatever_the_tensors(size: int) -> None:
    tensors = [torch.arange(n, dtype=torch.float32) + 1000 * i for i, n in enumerate((3, 500, 1, 0, 640, 2))]
    sample = Sample(tensors, size=size)
    whole = torch.cat(tensors)
    taken = sample.take().view(torch.float32)
    stride = next(n for n in range(-(-len(whole) // size), 10**6) if n == 1 or all(n % d for d in range(2, n)))  # the next prime
    assert torch.equal(taken, whole[::stride])


def test_a_sampled_share_is_close_to_the_whole_one() -> None:
    g = torch.Generator().manual_seed(0)
    w = torch.randn(512, 4096, generator=g)  # eight times what is looked at
    sample = Sample([w])
    before = sample.take()
    assert len(before) < 2**18 + 1
    w[:, :41] += 1.0  # one column in a hundred: a stride of 8 would see all of it, or nothing
    assert sample.changed(before) == pytest.approx(41 / 4096, rel=0.05)


# ---------------------------------------------------------------------------------------------------------------- state


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_restored_optimizer_goes_on_bit_for_bit(after: int) -> None:
    options, schedule = AdamWOptions(lr=1e-5), WSDOptions(kind="wsd", stable=2, decay=9)
    a = weights(torch.bfloat16)
    one = ScheduledAdamW(a, options, schedule)
    for t in range(after):
        stepped(one, draw(a, t), 0.7)
    saved = copy.deepcopy(one.state_dict())
    b = [nn.Parameter(p.detach().clone()) for p in a]  # as published: the masters are finer than that
    two = ScheduledAdamW(b, options, schedule)
    two.load_state_dict(saved)
    for t in range(after, after + 4):
        assert stepped(one, draw(a, t), 0.9) == stepped(two, draw(a, t), 0.9)
    for x, y in zip([*a, *one.masters], [*b, *two.masters], strict=True):
        assert torch.equal(x, y)
    assert str(saved) != str(one.state_dict())  # a saved state is a copy, not a window


def test_a_state_from_before_there_were_masters_starts_them_from_the_weights() -> None:
    ps = weights(torch.bfloat16)
    naive = torch.optim.AdamW(ps, lr=1e-3)
    give(ps, draw(ps, 0))
    naive.step()
    moments = [{k: v.clone() for k, v in naive.state[p].items()} for p in ps]  # bfloat16
    optimizer = ScheduledAdamW(
        [nn.Parameter(p.detach().clone()) for p in weights(torch.bfloat16, seed=9)], AdamWOptions(), ConstantOptions()
    )
    with torch.no_grad():
        for p, kept in zip(optimizer.parameters, ps, strict=True):
            p.copy_(kept)
    optimizer.load_state_dict({"applied": 1, "moments": moments})
    assert all(torch.equal(m, p.detach().float()) for m, p in zip(optimizer.masters, ps, strict=True))
    stepped(optimizer, draw(ps, 1))
    assert optimizer.applied == 2


def test_masters_of_another_model_are_refused() -> None:
    ps = weights(torch.bfloat16)
    state = ScheduledAdamW(ps, AdamWOptions(), ConstantOptions()).state_dict()
    other = ScheduledAdamW(weights(torch.bfloat16, shapes=((40, 30), (30,), (11, 7))), AdamWOptions(), ConstantOptions())
    with pytest.raises(ValueError, match="masters of other parameters"):
        other.load_state_dict(state)


# ---------------------------------------------------------------------------------------------------------------- in an update


def everything(learner: Learner) -> list[Tensor]:
    state = learner.optimizer.state_dict()
    moments, masters = state["moments"], state["masters"]
    assert isinstance(moments, list)
    assert isinstance(masters, list)
    kept = [*learner.model.parameters(), *masters, *(x for moment in moments for x in moment.values())]
    return [torch.tensor(learner.optimizer.applied), *(x.detach().clone() for x in kept)]


def test_a_skipped_step_moves_nothing_masters_included() -> None:
    model = tiny_model(torch.float32).bfloat16()
    batch = make_batch(copy.deepcopy(model).float())
    learner, capture = make_learner(model, ["vcpo"], optimizer={"lr": 1e-5})
    assert learner.train(batch)[0].applied
    before = everything(learner)
    capture.stop = True
    (result,) = learner.train(batch)
    assert (result.applied, result.reason, result.step) == (False, "capture: captured", None)
    assert all(torch.equal(x, y) for x, y in zip(everything(learner), before, strict=True))
    assert all(p.grad is None for p in [*learner.optimizer.masters, *learner.optimizer.parameters])
    capture.stop = False
    assert learner.train(batch)[0].applied
    assert not all(torch.equal(x, y) for x, y in zip(everything(learner), before, strict=True))


@pytest.mark.parametrize("norms", ["bookkeeping", "two_pass", "two_buffer"])
def test_an_update_in_bfloat16_is_near_the_one_in_float32(norms: str) -> None:
    """The same rounded weights, one step: gradients agree to what bfloat16 can say, and masters move by as much."""
    start = tiny_model(torch.float32).bfloat16()
    batch = make_batch(copy.deepcopy(start).float(), spread=0.3)
    moved, results = [], []
    for dtype in (torch.float32, torch.bfloat16):
        learner, _ = make_learner(copy.deepcopy(start).to(dtype), ["vcpo"], norms=norms, optimizer={"lr": 1e-6, "eps": 1e-2})
        before = [m.detach().double().clone() for m in learner.optimizer.masters]
        (result,) = learner.train(batch)
        assert result.applied
        results.append(result)
        moved.append(torch.cat([(m.detach().double() - b).flatten() for m, b in zip(learner.optimizer.masters, before, strict=True)]))
    assert results[1].raw_norm == pytest.approx(results[0].raw_norm, rel=0.1)
    assert float(torch.cosine_similarity(*moved, dim=0)) > 0.98
    assert float(moved[1].norm() / moved[0].norm()) == pytest.approx(1.0, abs=0.1)


def test_any_split_into_micro_batches_gives_nearly_the_same_masters() -> None:
    start = tiny_model(torch.float32).bfloat16()
    batch = make_batch(copy.deepcopy(start).float())
    norms = []
    for micro_tokens in (None, 25, 60):
        learner, _ = make_learner(copy.deepcopy(start), ["seq_tis", "grpo"], micro_tokens=micro_tokens)
        (result,) = learner.train(batch)
        norms.append(result.raw_norm)
    assert norms[1:] == pytest.approx([norms[0]] * 2, rel=0.05)


def test_a_critic_in_bfloat16_is_stepped_on_masters_too() -> None:
    model = tiny_model(torch.float32).bfloat16()
    batch = make_batch(copy.deepcopy(model).float())
    learner, _ = make_learner(model, ["gae", "ppo_clip"], critic={"updates": 4, "optimizer": {"lr": 1e-4}})
    learner.train(batch)
    critic = learner.critic
    assert critic is not None
    optimizer = critic.optimizer  # type: ignore[attr-defined]
    finer = [not torch.equal(m, p.float()) for m, p in zip(optimizer.masters, optimizer.parameters, strict=True) if m is not p]
    assert any(finer)
    state = critic.state_dict()
    assert isinstance(state["optimizer"], dict)
    assert len(state["optimizer"]["masters"]) == len(finer)
