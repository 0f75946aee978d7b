"""Advantages of whole rollouts from terminal rewards: baselines and scales per group.

Everywhere: ``reward_R`` the rewards, ``group_R`` int64 the group of each rollout, ``groups`` how many there are. Results are
float64, whatever the input. A group of one has the baseline R itself: advantage 0, no signal. An empty input gives an empty
output. Reductions run in storage order: equal to the bit under permutation only if rollouts are sorted by id first.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

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


class OptimalBaseline(NamedTuple):
    """``baseline_G`` with its diagnostics.

    ``share_G``           max_i W_i / sum W: 1 where one rollout carries its own baseline (0 where all weights are 0)
    ``variance_ratio_G``  sum W (R - b*)^2 / sum W (R - mean)^2, in [0, 1]; 1 where the mean leaves none (weighted std <= 1e-8)
    """

    baseline_G: Tensor
    share_G: Tensor
    variance_ratio_G: Tensor


def optimal_baseline(reward_R: Tensor, log_weight_R: Tensor, group_R: Tensor, groups: int) -> OptimalBaseline:
    """b* = sum W R / sum W per group: the b that minimizes sum W (R - b)^2 (VCPO, arXiv 2602.17616, Eq. 7: OPOB).

    With W = ||gradient contribution at unit advantage||^2 that is the second moment of the policy gradient. Weights come as
    logarithms and are shifted by the largest of the group, so that no ratio overflows. A log-weight of -inf is a weight of 0; with
    all weights 0 the baseline is the group's mean. NaN and +inf give a NaN baseline: the caller refuses the step.

    Not leave-one-out: a rollout that dominates its group gets an advantage near 0, which is what tames it.
    """
    r = reward_R.double()
    log_w = log_weight_R.detach().double()
    top_G = torch.full((groups,), -math.inf, dtype=torch.float64, device=r.device).scatter_reduce(0, group_R, log_w, "amax")
    top_G = torch.where(top_G == -math.inf, torch.zeros_like(top_G), top_G)
    w_R = (log_w - top_G[group_R]).exp()
    total_G = _sum_G(w_R, group_R, groups)
    nothing_G = total_G == 0
    divisor_G = torch.where(nothing_G, torch.ones_like(total_G), total_G)
    mean_G = group_mean(r, group_R, groups)
    baseline_G = torch.where(nothing_G, mean_G, _sum_G(w_R * r, group_R, groups) / divisor_G)

    largest_G = torch.zeros_like(total_G).scatter_reduce(0, group_R, w_R, "amax")
    around_best_G = _sum_G(w_R * (r - baseline_G[group_R]).square(), group_R, groups)
    around_mean_G = _sum_G(w_R * (r - mean_G[group_R]).square(), group_R, groups)
    flat_G = around_mean_G <= STD_FLOOR**2 * total_G
    ratio_G = around_best_G / torch.where(flat_G, torch.ones_like(around_mean_G), around_mean_G)
    return OptimalBaseline(baseline_G, largest_G / divisor_G, torch.where(flat_G, torch.ones_like(ratio_G), ratio_G))


def opob_log_weight(form: Literal["paper", "exact", "repo"], log_ratio_R: Tensor, log_truncated_R: Tensor, norm2_R: Tensor) -> Tensor:
    """log W of ``optimal_baseline``, _R float64; -inf where ``norm2_R`` is 0.

    ``paper``  W = w^2 ||u||^2             norm2 = ||u||^2, u = grad sum_t log pi (unit coefficient 1 on every action token)
    ``repo``   W = min(w, c)^2 w^2 ||u||^2  the released code: its gradient already carries the truncated weight; same norm2
    ``exact``  W = ||g||^2                 norm2 = ||g||^2, g = the rollout's contribution to this very loss at unit advantage

    ``log_ratio_R`` is the untruncated sequence log w, ``log_truncated_R`` = log min(w, c); ``exact`` reads neither.
    """
    log_norm2_R = norm2_R.detach().double().log()
    if form == "exact":
        return log_norm2_R
    log_w = 2.0 * log_ratio_R.detach().double() + log_norm2_R
    return log_w if form == "paper" else log_w + 2.0 * log_truncated_R.detach().double()
