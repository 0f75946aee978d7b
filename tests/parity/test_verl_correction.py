"""Importance weights, rejection and effective sample size against veRL's rollout correction (bypass mode: ratios to the rollout policy)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from verl.trainer.ppo import core_algos as verl
from verl.trainer.ppo import rollout_corr_helper as correction
from verl.workers.config import ActorConfig

from support.padded import Padded, drawn, same_loss
from trimtab import functional as F

pytestmark = pytest.mark.parity
BATCHES = [drawn(spread=0.5), drawn(1, spread=1.5, observations=True)]
both = pytest.mark.parametrize("batch", BATCHES, ids=["plain", "observations"])
Method = str | dict[str, Any]


def weights(batch: Padded, methods: list[Method]) -> tuple[Tensor, Tensor]:
    """(weight, keep) of a chain's weigh methods by token of the padded batch; the weight is 0 where not kept."""
    chain, view = batch.chain([*methods, "grpo"]), batch.view("token_mean")
    w = chain.learner().weigh(view)
    keep_N = torch.ones_like(view.behavior_N) if w.keep_N is None else w.keep_N.double()
    return batch.grid(view.weights(w)), batch.grid(keep_N)


def log_ratio(batch: Padded) -> Tensor:
    return batch.current_BT - batch.old_BT


@both
@pytest.mark.parametrize(
    ("method", "level", "threshold"),
    [
        ({"name": "tok_tis", "c": 2.0}, "token", 2.0),
        ({"name": "seq_tis", "c": 2.0}, "sequence", 2.0),
        ({"name": "seq_tis", "c": 8.0}, "sequence", 8.0),
        ("icepop", "token", "0.5_5.0"),
        ({"name": "tok_mis", "low": 0.5, "high": 5.0}, "token", "0.5_5.0"),
        ({"name": "seq_mis", "low": 0.5, "high": 2.0}, "sequence", "0.5_2.0"),
    ],
    ids=["token TIS", "sequence TIS", "sequence TIS 8", "IcePop", "token MIS", "sequence MIS"],
)
def test_weights(batch: Padded, method: Method, level: str, threshold: float | str) -> None:
    expected, _ = correction.compute_rollout_correction_weights(log_ratio(batch), batch.mask_BT, level, threshold)
    torch.testing.assert_close(weights(batch, [method])[0], expected, rtol=1e-9, atol=1e-12)


@both
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_batch_normalized_weights(batch: Padded, level: str) -> None:
    """Ours scales the finished gradient by 1 / mean weight: the same factor."""
    raw, _ = correction.compute_rollout_correction_weights(log_ratio(batch), batch.mask_BT, level, 2.0)
    _, metrics = correction.compute_rollout_correction_weights(log_ratio(batch), batch.mask_BT, level, 2.0, rollout_is_batch_normalize=True)
    length_B = batch.mask_BT.sum(1)
    mean_B = raw.sum(1) / length_B
    ours = (mean_B * length_B).sum() / length_B.sum() if level == "token" else mean_B.mean()
    assert float(ours) == pytest.approx(metrics["rollout_is_batch_norm_factor"], rel=1e-6)


@both
@pytest.mark.parametrize(
    ("methods", "option", "threshold"),
    [
        ([{"name": "geo_mis", "low": 1 / 1.1, "high": 1.1}], "seq_mean_k1", 1.1),
        ([{"name": "seq_mis", "low": 0.5, "high": 2.0}], "seq_sum_k1", 2.0),
        ([{"name": "tok_mis", "low": 0.5, "high": 2.0}], "token_k1", 2.0),
        ([{"name": "k3_reject", "limit": 0.1}], "seq_mean_k3", 0.1),
        ([{"name": "geo_mis", "low": 1 / 1.2, "high": 1.2}, {"name": "k3_reject", "limit": 0.2}], "seq_mean_k1,seq_mean_k3", "1.2,0.2"),
    ],
    ids=["geometric", "sequence", "token", "k3", "geometric and k3"],
)
def test_rejection(batch: Padded, methods: list[Method], option: str, threshold: float | str) -> None:
    """A single threshold X of theirs is the band [1/X, X] of the ratio."""
    kept, _ = correction.compute_rollout_rejection_mask(log_ratio(batch), batch.mask_BT, option, threshold)
    assert 0 < float(kept.sum()) < float(batch.mask_BT.sum()), "the case decides nothing"
    assert torch.equal(weights(batch, methods)[1], kept)


@both
def test_effective_sample_size(batch: Padded) -> None:
    """Theirs is of truncated token weights; ours of unclipped sequence weights. The same formula on the same weights agrees."""
    log_w_N = batch.flat(log_ratio(batch))
    _, metrics = correction.compute_rollout_correction_weights(log_ratio(batch), batch.mask_BT, "token", 2.0)
    assert F.ess.ess(log_w_N, cap=2.0).ratio == pytest.approx(metrics["rollout_is_eff_sample_size"], rel=1e-6)


# -------------------------------------------------------------------------------------------------------------------- differences


@both
def test_their_k1_band_is_of_the_inverse_ratio(batch: Padded) -> None:
    """ "0.6_1.4" keeps mean ratios from 1/1.4 to 1/0.6 there; the same band written here keeps 0.6 to 1.4."""
    theirs, _ = correction.compute_rollout_rejection_mask(log_ratio(batch), batch.mask_BT, "seq_mean_k1", "0.6_1.4")
    same = weights(batch, [{"name": "geo_mis", "low": 1 / 1.4, "high": 1 / 0.6}])[1]
    assert torch.equal(same, theirs)
    assert not torch.equal(weights(batch, [{"name": "geo_mis", "low": 0.6, "high": 1.4}])[1], theirs)


def _bypass(batch: Padded, **options: Any) -> tuple[Tensor, Tensor]:
    """Their REINFORCE loss with rollout correction, advantages of GRPO."""
    config = ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True)
    chosen = dataclasses.replace(config.policy_loss.rollout_correction, loss_type="reinforce", bypass_mode=True, **options)
    config = dataclasses.replace(config, policy_loss=dataclasses.replace(config.policy_loss, rollout_correction=chosen))
    leaf = batch.current_BT.clone().requires_grad_()
    loss, _ = verl.compute_policy_loss_bypass_mode(
        batch.old_BT, leaf, batch.advantage("grpo"), batch.mask_BT, loss_agg_mode="token-mean", config=config
    )
    return loss, leaf


@both
def test_corrected_policy_gradient(batch: Padded) -> None:
    loss, leaf = _bypass(batch, rollout_is="sequence", rollout_is_threshold=2.0, rollout_rs=None)
    same_loss(batch.played([{"name": "seq_tis", "c": 2.0}, "grpo", "linear"]), loss, leaf, batch)


@both
def test_rejection_shrinks_the_step_here_and_the_denominator_there(batch: Padded) -> None:
    """Our loss is theirs times the kept share of tokens: here a mask never changes a denominator."""
    loss, leaf = _bypass(
        batch, rollout_is="token", rollout_is_threshold=2.0, rollout_rs="seq_mean_k1", rollout_rs_threshold="0.7_1.4285714285714286"
    )
    methods: list[Method] = [{"name": "tok_tis", "c": 2.0}, {"name": "geo_mis", "low": 0.7, "high": 1 / 0.7}]
    kept = float(weights(batch, methods)[1].sum() / batch.mask_BT.sum())
    assert 0 < kept < 1
    same_loss(batch.played([*methods, "grpo", "linear"]), loss, leaf, batch, factor=kept)


def test_a_missing_behavior_log_prob_is_dropped_here_and_poisons_there() -> None:
    """Here such a token leaves the mask when the batch is formed (``invalid_tokens``); veRL's weights carry the NaN on."""
    ratio = torch.zeros(1, 3)
    ratio[0, 1] = torch.nan
    got, _ = correction.compute_rollout_correction_weights(ratio, torch.ones(1, 3), "token", 2.0)
    assert bool(got.isnan().any())
