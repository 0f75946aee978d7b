"""Against TRL's pure functions, where they define the same thing. ``make parity`` installs TRL."""

from __future__ import annotations

import pytest
import torch

from trimtab import functional as F

pytestmark = pytest.mark.parity


@pytest.fixture
def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """hidden_ND, weight_VD, targets_N in float64."""
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(40, 16, generator=draw, dtype=torch.float64)
    weight = torch.randn(23, 16, generator=draw, dtype=torch.float64)
    return hidden, weight, torch.randint(23, (40,), generator=draw)


def test_selected_log_probs_equal_selective_log_softmax(drawn: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    from trl.trainer.utils import selective_log_softmax

    hidden, weight, targets = drawn
    theirs = selective_log_softmax((hidden @ weight.T)[None] / 0.7, targets[None])[0]
    ours = F.logprobs.selected_logprobs(hidden, weight, targets, temperature=0.7, row_chunk=7, vocab_chunk=5)
    torch.testing.assert_close(ours.logp, theirs, rtol=0, atol=1e-12)
    torch.testing.assert_close(F.logprobs.gather_logp(hidden @ weight.T / 0.7, targets), theirs, rtol=0, atol=1e-12)


def test_entropy_equals_entropy_from_logits(drawn: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    from trl.trainer.utils import entropy_from_logits

    hidden, weight, targets = drawn
    theirs = entropy_from_logits(hidden @ weight.T)
    ours = F.logprobs.selected_logprobs(hidden, weight, targets, temperature=1.0, entropy=True, row_chunk=7, vocab_chunk=5)
    assert ours.entropy is not None
    torch.testing.assert_close(ours.entropy, theirs, rtol=0, atol=1e-12)


def test_group_std_differs_from_trl_by_its_epsilon_alone() -> None:
    """TRL adds 1e-4 to the unbiased std where we, like veRL, add 1e-6: the docs say so, and this pins it."""
    reward = torch.tensor([1.0, 0, 0, 1, 1, 0, 0, 0], dtype=torch.float64)
    ours = F.advantages.grpo(reward, torch.zeros(8, dtype=torch.int64), 1)
    theirs = (reward - reward.mean()) / (reward.std() + 1e-4)
    torch.testing.assert_close(ours * (reward.std() + 1e-6), theirs * (reward.std() + 1e-4), rtol=0, atol=1e-12)
