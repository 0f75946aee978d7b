"""Baselines weighted by how far each rollout moves the gradient: the optimal baseline with its variants, and the token baseline.

Everywhere: ``reward_R`` the rewards, ``group_R`` int64 the group of each rollout, ``groups`` how many there are. Weights come as
logarithms and are shifted by the largest of their group, so that no ratio overflows: -inf is a weight of 0, and where all weights of a
group are 0 they count as equal. NaN and +inf give a NaN baseline: the caller refuses the step. Results are float64.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from trimtab.functional.advantages import STD_FLOOR, group_mean

Aggregation = Literal["mean", "median", "winsorized"]
"""How weighted rewards become one number; ``winsorized`` clips them to their weighted 5 and 95 % quantiles before the mean."""

TAIL = 0.05


class OptimalBaseline(NamedTuple):
    """``share_G`` = max_i W_i / sum W: 1 where one rollout carries its own baseline, 0 where all weights are 0."""

    baseline_G: Tensor
    share_G: Tensor


class Comparison(NamedTuple):
    """A baseline beside the group's mean, group by group; ``mixed_G``: its rewards differ, only then the rest means something.

    ``variance_ratio_G``  sum W (R - b)^2 / sum W (R - mean)^2: at most 1 for the optimal baseline of the group itself
    ``change_G``          sqrt(sum C (b - mean)^2 / sum C (R - mean)^2), C the squared norm of a rollout's contribution at unit
                          advantage: how far b moves the group's gradient, relative to its length, where contributions are orthogonal

    Both denominators are 0 where the mean leaves nothing (weighted std <= 1e-8); the ratio is then 1 and the change 0.
    """

    mixed_G: Tensor
    baseline_G: Tensor
    mean_G: Tensor
    variance_ratio_G: Tensor
    change_G: Tensor


def _sum_G(x_R: Tensor, group_R: Tensor, groups: int) -> Tensor:
    return x_R.new_zeros(groups).index_add(0, group_R, x_R)


def _relative(log_weight_R: Tensor, group_R: Tensor, groups: int) -> Tensor:
    """Weights over the largest of their group, _R; all 1 in a group whose weights are all 0."""
    log_w = log_weight_R.detach().double()
    top_R = torch.full((groups,), -math.inf, dtype=torch.float64, device=log_w.device).scatter_reduce(0, group_R, log_w, "amax")[group_R]
    return torch.where(top_R == -math.inf, torch.ones_like(log_w), (log_w - top_R).exp())


def optimal_baseline(
    reward_R: Tensor, log_weight_R: Tensor, group_R: Tensor, groups: int, aggregation: Aggregation = "mean"
) -> OptimalBaseline:
    """b* = sum W R / sum W per group: the b that minimizes sum W (R - b)^2 (VCPO, arXiv 2602.17616, Eq. 7: OPOB).

    With W = ||gradient contribution at unit advantage||^2 that is the second moment of the policy gradient. ``median`` (the smallest
    reward up to which lies half of the weight) and ``winsorized`` are the released code's alternatives. A group without rollouts: 0.

    Not leave-one-out: a rollout that dominates its group gets an advantage near 0, which is what tames it.
    """
    r, w_R = reward_R.double(), _relative(log_weight_R, group_R, groups)
    total_G = _sum_G(w_R, group_R, groups)
    divisor_G = torch.where(total_G == 0, torch.ones_like(total_G), total_G)
    if aggregation == "median":
        (baseline_G,) = _quantiles(r, w_R, group_R, groups, (0.5,))
    else:
        if aggregation == "winsorized":
            low_G, high_G = _quantiles(r, w_R, group_R, groups, (TAIL, 1 - TAIL))
            r = r.clamp(low_G[group_R], high_G[group_R])
        baseline_G = _sum_G(w_R * r, group_R, groups) / divisor_G
    all_zero_G = _sum_G((log_weight_R > -math.inf).double(), group_R, groups) == 0
    largest_G = torch.zeros_like(total_G).scatter_reduce(0, group_R, w_R, "amax")
    share_G = torch.where(all_zero_G & ~total_G.isnan(), torch.zeros_like(total_G), largest_G / divisor_G)
    return OptimalBaseline(baseline_G + 0 * total_G, share_G)  # a quantile is blind to a NaN weight


def _quantiles(r: Tensor, w_R: Tensor, group_R: Tensor, groups: int, at: tuple[float, ...]) -> list[Tensor]:
    """For each q the smallest reward of the group at which the cumulated weight reaches q of its total, _G; 0 in an empty group."""
    order = r.argsort(stable=True)
    order = order[group_R[order].argsort(stable=True)]
    count_G = torch.bincount(group_R, minlength=groups)
    place = torch.arange(r.shape[0], device=r.device) - (count_G.cumsum(0) - count_G)[group_R[order]]
    shape = groups, max(int(count_G.max()) if groups else 0, 1)
    rewards, weights = r.new_zeros(shape), r.new_zeros(shape)
    rewards[group_R[order], place], weights[group_R[order], place] = r[order], w_R[order]
    cumulated = weights.cumsum(1)
    last_G = (count_G - 1).clamp(min=0)
    return [rewards.gather(1, torch.minimum((cumulated < q * cumulated[:, -1:]).sum(1), last_G)[:, None])[:, 0] for q in at]


def leave_one_out(reward_R: Tensor, log_weight_R: Tensor, group_R: Tensor, groups: int) -> Tensor:
    """b_{-i} = sum_{j != i} W_j R_j / sum_{j != i} W_j, _R: unbiased, but an outlier keeps its full advantage. A group of one: R itself."""
    r, log_w = reward_R.double(), log_weight_R.detach().double()
    w_R = _relative(log_w, group_R, groups)
    index_R = torch.arange(r.shape[0], device=r.device)
    first_G = torch.full((groups,), r.shape[0], device=r.device).scatter_reduce(0, group_R, index_R.where(w_R == 1, r.shape[0]), "amin")
    is_top_R = index_R == first_G[group_R]
    # Subtracting the largest weight would leave only its rounding of the others: they are summed without it.
    rest = ~is_top_R
    others_G = optimal_baseline(r[rest], log_w[rest], group_R[rest], groups).baseline_G
    alone_R = torch.bincount(group_R, minlength=groups)[group_R] == 1
    total_R, weighted_R = (_sum_G(x, group_R, groups)[group_R] for x in (w_R, w_R * r))
    among_R = (weighted_R - w_R * r) / torch.where(is_top_R, torch.ones_like(w_R), total_R - w_R)
    return torch.where(is_top_R, torch.where(alone_R, r, others_G[group_R] + 0 * total_R), among_R)


def against_mean(
    reward_R: Tensor, baseline_R: Tensor, log_weight_R: Tensor, log_contribution_R: Tensor, group_R: Tensor, groups: int
) -> Comparison:
    """What this baseline does that the group's mean would not: W = exp(log_weight_R), C = exp(log_contribution_R)."""
    r = reward_R.double()
    count_G = torch.bincount(group_R, minlength=groups).clamp(min=1).double()
    mean_G = group_mean(r, group_R, groups)
    off_R = r - mean_G[group_R]

    def ratio(log_w_R: Tensor, x_R: Tensor, nothing: float) -> Tensor:
        w_R = _relative(log_w_R, group_R, groups)
        around_G = _sum_G(w_R * off_R.square(), group_R, groups)
        flat_G = around_G <= STD_FLOOR**2 * _sum_G(w_R, group_R, groups)
        found_G = _sum_G(w_R * x_R.square(), group_R, groups) / torch.where(flat_G, torch.ones_like(around_G), around_G)
        return torch.where(flat_G, torch.full_like(found_G, nothing), found_G)

    return Comparison(
        mixed_G=torch.zeros_like(mean_G).scatter_reduce(0, group_R, off_R.abs(), "amax") > STD_FLOOR,
        baseline_G=_sum_G(baseline_R, group_R, groups) / count_G,
        mean_G=mean_G,
        variance_ratio_G=ratio(log_weight_R, r - baseline_R, 1.0),
        change_G=ratio(log_contribution_R, baseline_R - mean_G[group_R], 0.0).sqrt(),
    )


def opob_log_weight(form: Literal["paper", "exact", "repo"], log_ratio_R: Tensor, log_truncated_R: Tensor, norm2_R: Tensor) -> Tensor:
    """log W of ``optimal_baseline``, _R float64; -inf where ``norm2_R`` is 0.

    ``paper``  W = w^2 ||u||^2             norm2 = ||u||^2, u = grad sum_t log pi (unit coefficient 1 on every action token)
    ``repo``   W = min(w, c)^2 w^2 ||u||^2  the released code: its gradient already carries the truncated weight; same norm2
    ``exact``  W = min(w, c)^2 ||g||^2     min(w, c) g = the rollout's contribution to this very loss at unit advantage; norm2 = ||g||^2

    ``log_ratio_R`` is the untruncated sequence log w, ``log_truncated_R`` = log min(w, c). ``exact`` reads only the latter, apart from
    the norm, so that weights far below what float32 holds still compare.
    """
    log_norm2_R, log_truncated_R = norm2_R.detach().double().log(), log_truncated_R.detach().double()
    if form == "exact":
        return 2.0 * log_truncated_R + log_norm2_R
    log_w = 2.0 * log_ratio_R.detach().double() + log_norm2_R
    return log_w if form == "paper" else log_w + 2.0 * log_truncated_R


def logit_energy(current_N: Tensor, sum_p2_N: Tensor) -> Tensor:
    """||d log pi(a) / d logits||^2 = 1 - 2 pi(a) + sum_v pi(v)^2 per token, float64: the logit-gradient proxy of OTB (arXiv 2602.07078)."""
    return (1.0 - 2.0 * current_N.detach().double().exp() + sum_p2_N.detach().double()).clamp(min=0.0)


def token_baseline(
    return_N: Tensor, energy_N: Tensor, length_R: Tensor, group_R: Tensor, groups: int, *, zero_tail: bool = False
) -> Tensor:
    """B_t = sum_i G_it V_it / sum_i V_it over the group's rollouts that reach their t-th action token, V_t = the energy up to t, _N.

    Optimal token baseline (arXiv 2602.07078). Where all V are 0 it is the plain mean of G_t. Beyond the second-longest rollout the
    longest is alone: B_t = G_t, no signal; with ``zero_tail`` B_t = 0 there, as in the newer of the released versions.
    """
    longest = int(length_R.max()) if length_R.numel() else 0
    rollout_N = torch.repeat_interleave(torch.arange(length_R.shape[0], device=length_R.device), length_R)
    position_N = torch.arange(rollout_N.shape[0], device=length_R.device) - (length_R.cumsum(0) - length_R)[rollout_N]
    energy_RL = torch.zeros(length_R.shape[0], longest, dtype=torch.float64, device=length_R.device)
    energy_RL[rollout_N, position_N] = energy_N.double()
    g_N, v_N = return_N.double(), energy_RL.cumsum(1)[rollout_N, position_N]
    place_N, cells = group_R[rollout_N] * longest + position_N, groups * longest
    count_C = torch.bincount(place_N, minlength=cells)
    total_C = _sum_G(v_N, place_N, cells)
    mean_C = _sum_G(g_N, place_N, cells) / count_C.clamp(min=1)
    weighted_C = _sum_G(v_N * g_N, place_N, cells) / torch.where(total_C == 0, torch.ones_like(total_C), total_C)
    low_C = torch.full_like(mean_C, math.inf).scatter_reduce(0, place_N, g_N, "amin")
    high_C = torch.full_like(mean_C, -math.inf).scatter_reduce(0, place_N, g_N, "amax")
    equal_N = (high_C - low_C <= STD_FLOOR)[place_N]
    baseline_N = torch.where(total_C == 0, mean_C, weighted_C)[place_N]
    baseline_N = torch.where(equal_N, g_N + 0 * baseline_N, baseline_N)  # exactly: rounding is no signal
    return torch.where(count_C[place_N] == 1, 0 * baseline_N, baseline_N) if zero_tail else baseline_N
