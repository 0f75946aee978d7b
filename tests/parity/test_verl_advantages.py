"""Advantages against veRL's estimators: same batch, same numbers, or the stated difference. ``make parity`` installs veRL."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos as verl
from verl.utils.torch_functional import masked_whiten

from support.padded import Padded, drawn
from trimtab import functional as F

pytestmark = pytest.mark.parity
BATCHES = [drawn(), drawn(1, observations=True)]
both = pytest.mark.parametrize("batch", BATCHES, ids=["plain", "observations"])


Estimator = Callable[..., tuple[Tensor, Tensor]]


def theirs(estimator: Estimator, batch: Padded, **more: object) -> Tensor:
    return estimator(batch.token_reward_BT, response_mask=batch.mask_BT, index=batch.group_B.numpy(), **more)[0]


@both
@pytest.mark.parametrize(
    ("ours", "estimator", "more"),
    [
        ("grpo", verl.compute_grpo_outcome_advantage, {}),
        ({"name": "grpo", "std": "none"}, verl.compute_grpo_outcome_advantage, {"norm_adv_by_std_in_grpo": False}),
        ("rloo", verl.compute_rloo_outcome_advantage, {}),
        ("rloo", verl.compute_rloo_vectorized_outcome_advantage, {}),
        ("opo", verl.compute_opo_outcome_advantage, {}),
        ({"name": "reinforce_pp", "baseline": "group"}, verl.compute_reinforce_plus_plus_baseline_outcome_advantage, {}),
    ],
    ids=["grpo", "dr_grpo", "rloo", "rloo vectorized", "opo", "reinforce++ baseline"],
)
def test_of_groups(batch: Padded, ours: str | dict[str, str], estimator: Estimator, more: dict[str, object]) -> None:
    torch.testing.assert_close(batch.advantage(ours), theirs(estimator, batch, **more), rtol=1e-7, atol=1e-7)


@both
def test_reinforce_pp(batch: Padded) -> None:
    expected, _ = verl.compute_reinforce_plus_plus_outcome_advantage(batch.token_reward_BT, batch.mask_BT, AlgoConfig(gamma=1.0))
    torch.testing.assert_close(batch.advantage("reinforce_pp"), expected, rtol=1e-7, atol=1e-7)


@both
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.5)])
def test_gae(batch: Padded, gamma: float, lam: float) -> None:
    """Observations between turns are passed over in both; advantages are whitened over action tokens."""
    credit = batch.credit({"name": "gae", "gamma": gamma, "lam_actor": lam, "lam_critic": lam})
    assert credit.advantage_N is not None
    assert credit.return_N is not None
    advantage, returns = verl.compute_gae_advantage_return(batch.token_reward_BT, batch.values_BT, batch.mask_BT, gamma, lam)
    torch.testing.assert_close(batch.grid(credit.return_N), returns * batch.mask_BT, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(batch.grid(credit.advantage_N), advantage * batch.mask_BT, rtol=1e-6, atol=1e-6)


@both
@pytest.mark.parametrize("zero_tail", [False, True])
def test_optimal_token_baseline(batch: Padded, zero_tail: bool) -> None:
    expected, _ = verl.compute_multi_turn_optimal_token_baseline_advantage(
        batch.token_reward_BT,
        batch.mask_BT,
        batch.group_B.numpy(),
        old_log_probs=batch.current_BT,
        sum_pi_squared=batch.sum_p2_BT,
        handle_zero_tail=zero_tail,
    )
    torch.testing.assert_close(batch.advantage({"name": "otb", "zero_tail": zero_tail}), expected, rtol=1e-6, atol=1e-6)


def test_value_loss() -> None:
    batch, new = BATCHES[0], drawn(7).values_BT
    returns = drawn(8).values_BT
    expected, _ = verl.compute_value_loss(new, returns, batch.values_BT, batch.mask_BT, cliprange_value=0.2)
    ours = F.traces.value_loss(batch.flat(new), batch.flat(returns), batch.flat(batch.values_BT), 0.2).mean()
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=0)


# -------------------------------------------------------------------------------------------------------------------- differences


def test_a_group_of_one_is_refused_here_and_has_its_reward_as_advantage_there() -> None:
    reward, mask = torch.tensor([[0.0, 0.7]], dtype=torch.float64), torch.ones(1, 2).double()
    one = verl.compute_grpo_outcome_advantage(reward.clone(), mask, index=torch.zeros(1).numpy())[0]
    torch.testing.assert_close(one, torch.full((1, 2), 0.7 / (1 + 1e-6)).double(), rtol=1e-6, atol=0)
    assert verl.compute_rloo_outcome_advantage(reward.clone(), mask, torch.zeros(1).numpy())[0].tolist() == [[0.7, 0.7]]
    assert verl.compute_rloo_vectorized_outcome_advantage(reward.clone(), mask, torch.zeros(1).numpy())[0].tolist() == [[0, 0]]
    none = F.advantages.grpo(torch.tensor([0.7]).double(), torch.zeros(1).long(), 1)
    assert none.tolist() == [0.0]


def test_a_spread_below_1e8_is_rounding_here_and_is_divided_by_there() -> None:
    reward = torch.tensor([0.5, 0.5 + 4e-9], dtype=torch.float64)
    assert F.advantages.grpo(reward, torch.zeros(2).long(), 1).tolist() == [0.0, 0.0]
    padded = torch.stack([torch.zeros_like(reward), reward], 1)
    found = verl.compute_grpo_outcome_advantage(padded, torch.ones(2, 2).double(), index=torch.zeros(2).numpy())[0]
    assert float(found[1, 0]) == pytest.approx(2e-9 / 1e-6, rel=0.01)


def test_whitening_one_token_is_an_error_there_and_leaves_it_here() -> None:
    with pytest.raises(ValueError, match="sum of the mask is one"):
        masked_whiten(torch.ones(1, 1), torch.ones(1, 1))
    assert F.traces.whiten(torch.tensor([0.25])).tolist() == [0.25]
