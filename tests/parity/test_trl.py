"""Against TRL's GRPO loss and helpers, where they define the same thing, or the stated difference. ``make parity`` installs TRL."""

from __future__ import annotations

import inspect
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

from support.padded import Padded, drawn, same_loss
from trimtab import functional as F

pytestmark = pytest.mark.parity
BATCHES = [drawn(spread=0.5), drawn(1, observations=True)]
both = pytest.mark.parametrize("batch", BATCHES, ids=["plain", "observations"])


def loss_of(batch: Padded, kind: str, *, ratio: Tensor | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    """TRL's own loss function on the batch, and the log-probs it is a function of; advantages are our GRPO's.

    It is a method of the trainer that reads options, the model's log-probs and an accelerator from it, and nothing else.
    """
    leaf = batch.current_BT.clone().requires_grad_()
    arguments = {"use_bias_correction_kl": False, "delta": None, "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}
    trainer = SimpleNamespace(
        **{
            "loss_type": kind,
            "importance_sampling_level": "token",
            "epsilon_low": 0.2,
            "epsilon_high": 0.2,
            "beta": 0.0,
            "off_policy_mask_threshold": None,
            "top_entropy_quantile": 1.0,
            "aux_loss_enabled": False,
            "use_vllm": ratio is not None,
            "vllm_importance_sampling_correction": ratio is not None,
            "_entropy_bonus_enabled": False,
            "use_adaptive_entropy": False,
            "max_completion_length": batch.max_length,
            "current_gradient_accumulation_steps": 1,
            "model": SimpleNamespace(training=True),
            "accelerator": Accelerator(cpu=True),
            "_metrics": defaultdict(lambda: defaultdict(list)),
            "get_off_policy_mask": GRPOTrainer.get_off_policy_mask,
            "_get_per_token_logps_and_entropies": lambda *a, **k: (leaf, batch.entropy_BT, None),
        }
        | {k: v for k, v in options.items() if k not in arguments},
        args=SimpleNamespace(**(arguments | {k: v for k, v in options.items() if k in arguments}), steps_per_generation=1),
    )
    ids = torch.zeros(batch.mask_BT.shape, dtype=torch.int64)
    inputs = {
        "prompt_ids": ids[:, :0],
        "prompt_mask": ids[:, :0],
        "completion_ids": ids,
        "completion_mask": batch.mask_BT,
        "advantages": batch.credit("grpo").advantage_R,
        "old_per_token_logps": batch.old_BT,
        "ref_per_token_logps": batch.reference_BT,
        "num_items_in_batch": batch.mask_BT.sum(),
        "importance_sampling_ratio": ratio,
    }
    return GRPOTrainer._compute_loss(trainer, None, inputs), leaf


CLIP = {"name": "ppo_clip", "low": 0.2, "high": 0.2}


@both
@pytest.mark.parametrize(
    ("kind", "reduction"),
    [
        ("grpo", "seq_mean_token_mean"),
        ("bnpo", "token_mean"),
        ("dapo", "token_mean"),
        ("dr_grpo", "seq_mean_token_sum_norm"),
    ],
)
def test_clipped_losses(batch: Padded, kind: str, reduction: str) -> None:
    same_loss(batch.played([CLIP, "grpo"], reduction), *loss_of(batch, kind), batch)


@both
def test_clip_higher(batch: Padded) -> None:
    ours = batch.played([{"name": "ppo_clip", "low": 0.2, "high": 0.28}, "grpo"])
    same_loss(ours, *loss_of(batch, "dapo", epsilon_high=0.28), batch)


@both
def test_delta_is_the_dual_clip(batch: Padded) -> None:
    """Their ``delta`` caps the unclipped ratio; above 1 + epsilon that only bites for A < 0, where it is our ``dual``."""
    ours = batch.played([CLIP | {"dual": 1.4}, "grpo"], "seq_mean_token_mean")
    same_loss(ours, *loss_of(batch, "grpo", delta=1.4), batch)


@both
def test_cispo(batch: Padded) -> None:
    """``epsilon_high`` there is the bound itself, without a lower one: our [0, 5]."""
    same_loss(batch.played(["cispo", "grpo"]), *loss_of(batch, "cispo", epsilon_high=5.0), batch)
    same_loss(batch.played([{"name": "cispo", "high": 1.1}, "grpo"]), *loss_of(batch, "cispo", epsilon_high=1.1), batch)


@both
def test_sapo(batch: Padded) -> None:
    same_loss(batch.played(["sapo", "grpo"], "seq_mean_token_mean"), *loss_of(batch, "sapo"), batch)


@both
def test_gspo(batch: Padded) -> None:
    """Their sequence form has one ratio a rollout with its gradient through the mean; ours is the token form: the same gradient."""
    ours = batch.played([{"name": "gspo", "low": 0.1, "high": 0.2}, "grpo"], "seq_mean_token_mean")
    same_loss(ours, *loss_of(batch, "grpo", importance_sampling_level="sequence", epsilon_low=0.1), batch)


@both
@pytest.mark.parametrize("delta", [0.0, 0.1, 0.5])
def test_off_policy_sequence_mask(batch: Padded, delta: float) -> None:
    ours = batch.played([{"name": "opsm", "delta": delta}, "grpo"], "seq_mean_token_mean")
    same_loss(ours, *loss_of(batch, "grpo", off_policy_mask_threshold=delta), batch)


@both
@pytest.mark.parametrize("unbiased", [False, True])
def test_kl_term(batch: Padded, unbiased: bool) -> None:
    """k3 to the reference model; ``use_bias_correction_kl`` is our ``unbiased``, here to the same anchor."""
    ours = batch.played([CLIP, "grpo", {"name": "kl_term", "beta": 0.3, "estimator": "k3", "unbiased": unbiased}], "seq_mean_token_mean")
    same_loss(ours, *loss_of(batch, "grpo", beta=0.3, use_bias_correction_kl=unbiased), batch)


@both
def test_entropy_bonus(batch: Padded) -> None:
    loss, _ = loss_of(batch, "dapo", _entropy_bonus_enabled=True, entropy_coef=0.2)
    ours = batch.played([CLIP, "grpo", {"name": "entropy_term", "coefficient": 0.2}])
    torch.testing.assert_close(ours.loss, loss.detach(), rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------------------------------------------------ importance sampling


SOURCE = inspect.getsource(GRPOTrainer._generate_and_score_completions)
MODES = {
    "token_truncate": {"name": "tok_tis", "c": 3.0},
    "sequence_truncate": {"name": "seq_tis", "c": 3.0},
    "token_mask": {"name": "tok_mis", "high": 3.0},
    "sequence_mask": {"name": "seq_mis", "high": 3.0},
}


def vllm_ratio(batch: Padded, mode: str, high: float) -> Tensor:
    """The lines of TRL that make the ratio; they stand inside a long method, so their text is compared too."""
    lines = (
        "per_token_logps_diff = (old_per_token_logps - sampling_per_token_logps) * mask",
        "per_sequence_logps_diff = per_token_logps_diff.sum(dim=-1, keepdim=True)",
        "vllm_importance_sampling_ratio = torch.exp(logps_diff)",
        "invalid_mis_mask = (vllm_importance_sampling_ratio < min_val) | (",
    )
    assert all(line in SOURCE for line in lines), "TRL has changed: look again"
    diff = (batch.current_BT - batch.old_BT) * batch.mask_BT
    ratio = (diff.sum(-1, keepdim=True) if mode.startswith("sequence") else diff).exp()
    return ratio.clamp(max=high) if mode.endswith("truncate") else ratio.masked_fill(ratio > high, 0.0)


@both
@pytest.mark.parametrize("mode", MODES)
def test_importance_sampling_modes(batch: Padded, mode: str) -> None:
    """Proximal/behavior weights times a clipped loss whose own ratio is 1; masked rollouts stay in the denominator in both."""
    ratio = vllm_ratio(batch, mode, 3.0)
    view = batch.view("seq_mean_token_mean")
    chain = batch.chain([MODES[mode], "grpo", "linear"], "seq_mean_token_mean")
    ours = batch.grid(view.weights(chain.learner().weigh(view)))
    torch.testing.assert_close(ours, ratio.expand_as(ours) * batch.mask_BT, rtol=1e-9, atol=1e-12)
    played = batch.played([MODES[mode], "grpo", "linear"], "seq_mean_token_mean")
    at_one = Padded(**(vars(batch) | {"old_BT": batch.current_BT}))
    loss, leaf = loss_of(at_one, "grpo", ratio=ratio)
    (grad,) = torch.autograd.grad(loss, leaf)
    torch.testing.assert_close(batch.grid(played.d_N), grad * batch.mask_BT, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------------- log-probs, rest


@pytest.fixture
def hidden() -> tuple[Tensor, Tensor, Tensor]:
    """hidden_ND, weight_VD, targets_N in float64."""
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(40, 16, generator=draw, dtype=torch.float64)
    weight = torch.randn(23, 16, generator=draw, dtype=torch.float64)
    return hidden, weight, torch.randint(23, (40,), generator=draw)


def test_selected_log_probs_equal_selective_log_softmax(hidden: tuple[Tensor, Tensor, Tensor]) -> None:
    h, weight, targets = hidden
    theirs = selective_log_softmax((h @ weight.T)[None] / 0.7, targets[None])[0]
    ours = F.logprobs.selected_logprobs(h, weight, targets, temperature=0.7, row_chunk=7, vocab_chunk=5)
    torch.testing.assert_close(ours.logp, theirs, rtol=0, atol=1e-12)
    torch.testing.assert_close(F.logprobs.gather_logp(h @ weight.T / 0.7, targets), theirs, rtol=0, atol=1e-12)


def test_entropy_equals_entropy_from_logits(hidden: tuple[Tensor, Tensor, Tensor]) -> None:
    h, weight, targets = hidden
    theirs = entropy_from_logits(h @ weight.T)
    ours = F.logprobs.selected_logprobs(h, weight, targets, temperature=1.0, entropy=True, row_chunk=7, vocab_chunk=5)
    assert ours.entropy is not None
    torch.testing.assert_close(ours.entropy, theirs, rtol=0, atol=1e-12)


# -------------------------------------------------------------------------------------------------------------------- differences


def test_group_std_differs_from_trl_by_its_epsilon_alone() -> None:
    """TRL adds 1e-4 to the unbiased std where we, like veRL, add 1e-6."""
    assert "advantages = advantages / (std_rewards + 1e-4)" in SOURCE
    reward = torch.tensor([1.0, 0, 0, 1, 1, 0, 0, 0], dtype=torch.float64)
    ours = F.advantages.grpo(reward, torch.zeros(8, dtype=torch.int64), 1)
    theirs = (reward - reward.mean()) / (reward.std() + 1e-4)
    torch.testing.assert_close(ours * (reward.std() + 1e-6), theirs * (reward.std() + 1e-4), rtol=0, atol=1e-12)


def test_rloo_is_the_mean_of_the_others_in_both() -> None:
    source = inspect.getsource(RLOOTrainer)
    assert "baselines = (grouped_sum - grouped_rewards) / (scorable_counts - 1)" in source
    assert "advantages = torch.zeros_like(rewards)" in source, "a group of one has advantage 0 there; here it is refused"
    reward = torch.tensor([1.0, 0, 0, 1], dtype=torch.float64)
    ours = F.advantages.rloo(reward, torch.zeros(4, dtype=torch.int64), 1)
    torch.testing.assert_close(ours, reward - (reward.sum() - reward) / 3, rtol=0, atol=1e-12)


def test_a_missing_sampling_log_prob_is_a_ratio_of_1_there_and_no_token_here() -> None:
    assert "per_token_logps_diff = torch.nan_to_num(per_token_logps_diff, nan=0.0)" in SOURCE


def test_a_ratio_is_not_bounded_there_and_bounded_at_e20_here() -> None:
    batch = drawn()
    far = Padded(**(vars(batch) | {"current_BT": batch.old_BT + 800.0}))
    loss, _ = loss_of(far, "grpo")
    assert not bool(torch.isfinite(loss))
    assert far.played([CLIP, "grpo"], "seq_mean_token_mean").finite
