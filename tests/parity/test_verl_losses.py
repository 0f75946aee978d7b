"""Objectives and reductions against veRL's policy losses: values and gradients of the same batch, or the stated difference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from verl.trainer.ppo import core_algos as verl
from verl.workers.config import ActorConfig

from support.padded import Padded, drawn, same_loss
from trimtab import functional as F

pytestmark = pytest.mark.parity
BATCHES = [drawn(spread=0.5), drawn(1, observations=True)]
both = pytest.mark.parametrize("batch", BATCHES, ids=["plain", "observations"])
REDUCTIONS = {
    "token_mean": "token-mean",
    "seq_mean_token_mean": "seq-mean-token-mean",
    "seq_mean_token_sum": "seq-mean-token-sum",
    "seq_mean_token_sum_norm": "seq-mean-token-sum-norm",
}


def actor(batch: Padded, **options: Any) -> ActorConfig:
    info = {"loss_scale_factor": batch.max_length}
    return ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, global_batch_info=info, **options)


def theirs(name: str, batch: Padded, reduction: str, **options: Any) -> tuple[Tensor, Tensor]:
    """The loss and the log-probs it is a function of; advantages are GRPO's."""
    leaf = batch.current_BT.clone().requires_grad_()
    advantage = batch.advantage("grpo")
    loss, _ = verl.get_policy_loss_fn(name)(
        batch.old_BT, leaf, advantage, batch.mask_BT, loss_agg_mode=REDUCTIONS[reduction], config=actor(batch, **options)
    )
    return loss, leaf


@both
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions(batch: Padded, reduction: str) -> None:
    losses = batch.values_BT
    expected = verl.agg_loss(losses, batch.mask_BT, REDUCTIONS[reduction], loss_scale_factor=batch.max_length)
    view = batch.view(reduction)
    torch.testing.assert_close((view.scale_N * batch.flat(losses)).sum(), expected, rtol=1e-7, atol=1e-12)


def both_sides(epsilon: float) -> dict[str, float]:
    return {"clip_ratio_low": epsilon, "clip_ratio_high": epsilon}


SAME: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "PPO": ("ppo_clip", {"low": 0.2, "high": 0.28, "dual": 3.0}, {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}),
    "PPO, tight dual clip": ("ppo_clip", {"dual": 1.1}, {**both_sides(0.2), "clip_ratio_c": 1.1}),
    "CISPO": ("cispo", {"low": 0.8, "high": 1.2}, both_sides(0.2)),
    "SAPO": ("sapo", {}, {"tau_pos": 1.0, "tau_neg": 1.05}),
    "DPPO, TV": ("dppo", {"cap": 1.5}, {**both_sides(0.15), "clip_ratio_c": 1.5}),
    "DPPO, KL": ("dppo", {"divergence": "kl", "cap": 20.0}, {**both_sides(0.05), "clip_ratio_c": 20.0}),
    "GSPO": ("gspo", {"low": 0.1, "high": 0.2}, {"clip_ratio_low": 0.1, "clip_ratio_high": 0.2}),
    "Kimi": ("kimi", {"tau": 0.3}, {"policy_loss": {"dro_beta": 0.3}}),
    "policy gradient": ("linear", {}, {}),
}
NAMES = {"PPO": "vanilla", "PPO, tight dual clip": "vanilla", "DPPO, TV": "dppo_tv", "DPPO, KL": "dppo_kl", "Kimi": "dro"}


@both
@pytest.mark.parametrize("case", SAME)
def test_objectives(batch: Padded, case: str) -> None:
    method, options, their_options = SAME[case]
    reduction = "seq_mean_token_mean" if case in ("GSPO", "SAPO") else "token_mean"  # veRL's SAPO knows no other
    name = NAMES.get(case, "gpg" if method == "linear" else method)
    if "policy_loss" in their_options:
        their_options = {"policy_loss": dataclasses.replace(actor(batch).policy_loss, **their_options["policy_loss"])}
    loss, leaf = theirs(name, batch, reduction, **their_options)
    beside = ["none"] if method in ("linear", "kimi") else []
    same_loss(batch.played([{"name": method, **options}, "grpo", *beside], reduction), loss, leaf, batch)


@both
@pytest.mark.parametrize(("ours", "name"), [(F.divergence.k1, "k1"), (F.divergence.k2, "k2"), (F.divergence.k3, "k3")])
def test_kl_estimators(batch: Padded, ours: Callable[[Tensor], Tensor], name: str) -> None:
    torch.testing.assert_close(
        ours(batch.reference_BT - batch.current_BT), verl.kl_penalty(batch.current_BT, batch.reference_BT, name), rtol=1e-9, atol=1e-12
    )


# -------------------------------------------------------------------------------------------------------------------- differences


def test_a_rollout_without_a_token_counts_here_and_not_there() -> None:
    """Twelve rollouts of which one lost all its tokens: our mean is over 12, theirs over 11."""
    batch = drawn()
    mask = batch.mask_BT.clone()
    mask[1] = 0
    fewer = dataclasses.replace(batch, mask_BT=mask)
    for reduction in ("seq_mean_token_mean", "seq_mean_token_sum"):
        expected = verl.agg_loss(batch.values_BT, mask, REDUCTIONS[reduction])
        ours = (fewer.view(reduction).scale_N * fewer.flat(batch.values_BT)).sum()
        torch.testing.assert_close(ours * 12, expected * 11, rtol=1e-7, atol=0)


def test_the_dual_clip_is_a_switch_here_and_always_on_there() -> None:
    batch = drawn(spread=2.0)
    always, leaf = theirs("vanilla", batch, "token_mean", clip_ratio=0.2)
    without = batch.played(["ppo_clip", "grpo"])
    assert abs(float(without.loss) - always.item()) > 1e-3
    same_loss(batch.played([{"name": "ppo_clip", "dual": 3.0}, "grpo"]), always, leaf, batch)


def test_the_exponent_of_a_ratio_is_clamped_at_20_in_both_and_the_gradient_vanishes_there() -> None:
    assert F.ratios.EXP_BOUND == 20.0
    batch = drawn()
    far = dataclasses.replace(batch, current_BT=batch.old_BT + 25.0, old_BT=batch.old_BT)
    loss, leaf = theirs("cispo", far, "token_mean", clip_ratio_low=1.0, clip_ratio_high=1e12)
    same_loss(far.played([{"name": "cispo", "low": 0.0, "high": 1e12}, "grpo"]), loss, leaf, far)


def test_k3_is_bounded_by_its_exponent_here_and_at_10_there() -> None:
    d = torch.tensor([2.0, 5.0]).double()
    theirs_k3 = verl.kl_penalty(torch.zeros(2).double(), d, "k3")
    assert theirs_k3.tolist() == pytest.approx([float(torch.e**2 - 3), 10.0])
    assert F.divergence.k3(d).tolist() == pytest.approx([float(torch.e**2 - 3), float(torch.tensor(5.0).double().exp() - 6)])


def test_cispo_bounds_are_of_the_ratio_here_and_offsets_from_1_there() -> None:
    """``low = 0.8, high = 1.2`` is their ``clip_ratio = 0.2``; our default [0, 5] is their (1.0, 4.0)."""
    batch = drawn(spread=2.0)
    loss, leaf = theirs("cispo", batch, "token_mean", clip_ratio_low=1.0, clip_ratio_high=4.0)
    same_loss(batch.played(["cispo", "grpo"]), loss, leaf, batch)
