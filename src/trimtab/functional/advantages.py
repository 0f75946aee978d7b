"""Advantages of whole rollouts from terminal rewards: baselines and scales per group.

Everywhere: ``reward_R`` the rewards, ``group_R`` int64 the group of each rollout, ``groups`` how many there are. Results are
float64, whatever the input. A group of one has the baseline R itself: advantage 0, no signal. An empty input gives an empty
output. Reductions run in storage order: equal to the bit under permutation only if rollouts are sorted by id first.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from trimtab.functional.traces import order, scan, whiten

Scale = Literal["group", "population", "batch", "none"]
"""What an advantage is divided by: the group's unbiased std, its population std, the batch's unbiased std, or nothing."""

STD_FLOOR = 1e-8  # rewards closer than this are equal: the rest is rounding
STD_EPS = 1e-6  # added to an unbiased std (veRL's GRPO)


def _sum_G(x_R: Tensor, group_R: Tensor, groups: int) -> Tensor:
    return torch.zeros(groups, dtype=torch.float64, device=x_R.device).index_add(0, group_R, x_R.double())


def _count_G(group_R: Tensor, groups: int) -> Tensor:
    return torch.bincount(group_R, minlength=groups).double()


def group_mean(reward_R: Tensor, group_R: Tensor, groups: int) -> Tensor:
    """Mean reward of each group, _G; 0 for a group without rollouts."""
    return _sum_G(reward_R, group_R, groups) / _count_G(group_R, groups).clamp(min=1)


def _inverse(std: Tensor, eps: float) -> Tensor:
    # not(std <= floor) rather than std > floor: a NaN reward must come out as NaN, not as "no signal".
    return torch.where(std <= STD_FLOOR, torch.zeros_like(std), 1.0 / (std + eps))


def unbiased_std(x_R: Tensor) -> Tensor:
    """Standard deviation with n - 1, float64; 0 for fewer than two values."""
    return x_R.double().std() if x_R.numel() > 1 else x_R.new_zeros((), dtype=torch.float64)


def reward_scale(reward_R: Tensor, group_R: Tensor, groups: int, std: Scale = "group", batch_std: float | None = None) -> Tensor:
    """Factor 1/sigma per rollout, _R; exactly 0 where sigma <= 1e-8 (all rewards equal, or a group of one).

    ``group``       1 / (unbiased std of the group + 1e-6); what the measured regime used
    ``population``  1 / population std of the group, no epsilon (VCPO's released code)
    ``batch``       1 / (unbiased std of all rollouts + 1e-6); ``batch_std`` is that std where ``reward_R`` holds a part of them
    ``none``        1
    """
    r = reward_R.double()
    if std == "none":
        return torch.ones_like(r)
    if std == "batch":
        spread = unbiased_std(r) if batch_std is None else r.new_tensor(batch_std)
        return _inverse(spread, STD_EPS).expand_as(r)
    deviation2_R = (r - group_mean(r, group_R, groups)[group_R]).square()
    count_G = _count_G(group_R, groups)
    freedom_G = count_G if std == "population" else count_G - 1
    std_G = (_sum_G(deviation2_R, group_R, groups) / freedom_G.clamp(min=1)).sqrt()
    return _inverse(std_G, 0.0 if std == "population" else STD_EPS)[group_R]


def grpo(reward_R: Tensor, group_R: Tensor, groups: int, std: Scale = "group") -> Tensor:
    """A = (R - mean of the group) / sigma, _R (Shao et al. 2024, arXiv 2402.03300); sigma as in ``reward_scale``."""
    return (reward_R.double() - group_mean(reward_R, group_R, groups)[group_R]) * reward_scale(reward_R, group_R, groups, std)


def dr_grpo(reward_R: Tensor, group_R: Tensor, groups: int) -> Tensor:
    """A = R - mean of the group, _R (Liu et al. 2025, arXiv 2503.20783); reduce with ``seq_mean_token_sum_norm``."""
    return grpo(reward_R, group_R, groups, "none")


def rloo(reward_R: Tensor, group_R: Tensor, groups: int) -> Tensor:
    """A = R - mean of the others = n/(n-1) (R - mean), _R (Ahmadian et al. 2024, arXiv 2402.14740); 0 for a group of one."""
    n_R = _count_G(group_R, groups)[group_R]
    return dr_grpo(reward_R, group_R, groups) * n_R / (n_R - 1).clamp(min=1)


def reinforce(reward_R: Tensor, baseline: float = 0.0) -> Tensor:
    """A = R - baseline, _R (Williams 1992), with a constant that does not depend on the batch."""
    return reward_R.double() - baseline


def b0(reward_R: Tensor, group_R: Tensor, groups: int, std: Scale = "group") -> Tensor:
    """A = R / sigma, _R: no baseline, the scale of the other arms. The control that shows what a baseline is worth."""
    return reward_R.double() * reward_scale(reward_R, group_R, groups, std)


def log_mean_exp_baseline(reward_R: Tensor, group_R: Tensor, groups: int, tau: float) -> Tensor:
    """b = tau (logsumexp(R / tau) - log n) of each group, _G: between mean (tau to inf) and maximum (tau to 0) (OPMD, Trinity-RFT).

    Equal rewards give exactly that reward; a group without rollouts gives 0.
    """
    r = reward_R.double()
    top_G = torch.full((groups,), -math.inf, dtype=torch.float64, device=r.device).scatter_reduce(0, group_R, r, "amax")
    top_G = torch.where(top_G == -math.inf, torch.zeros_like(top_G), top_G)
    mean_G = _sum_G(((r - top_G[group_R]) / tau).exp(), group_R, groups) / _count_G(group_R, groups).clamp(min=1)
    return torch.where(mean_G == 0, torch.zeros_like(mean_G), top_G + tau * mean_G.log())


def group_min(reward_R: Tensor, group_R: Tensor, groups: int) -> Tensor:
    """A = R - worst reward of the group, _R: no rollout is pushed down."""
    r = reward_R.double()
    worst_G = torch.full((groups,), math.inf, dtype=torch.float64, device=r.device).scatter_reduce(0, group_R, r, "amin")
    return r - worst_G[group_R]


def reward_to_go(reward_N: Tensor, length_R: Tensor) -> Tensor:
    """G_t = sum of the rewards of token t and all later ones of its rollout, _N float64."""
    r_N = reward_N.double()
    return scan(r_N[None], torch.ones_like(r_N)[None], order(length_R))[0]


def reinforce_pp(return_N: Tensor) -> Tensor:
    """A_t = (G_t - mean) / std over all tokens of the batch, _N (Hu 2025, arXiv 2501.03262, Eq. 10); exactly 0 where all are equal."""
    spread = return_N.max() - return_N.min() if return_N.numel() else return_N.new_zeros(())
    return torch.where(spread <= STD_FLOOR, torch.zeros_like(return_N, dtype=torch.float64), whiten(return_N))
