"""Clip ranges and trust regions that are found from the data: M2PO, BAPO, DPPO, DeepSeek-V3.2's sequence mask.

Everything here is detached. d_N = log pi_current - log pi_old per token, r = exp(d). A NaN is never outside a region: it stays in the
loss, and the step is refused.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from trimtab.functional.ratios import exp_clamped, sequence_mean

SIGN_EPS = 1e-12  # an advantage this close to zero is neither positive nor negative (M2PO's released code)


class Range(NamedTuple):
    """Ratios within [low, high] are not clipped. ``statistic`` is what the range was found from, before it was applied."""

    low: float
    high: float
    statistic: float


def m2po_range(d_N: Tensor, advantage_N: Tensor, *, budget: float = 0.04, solve: Literal["code", "exact"] = "code") -> Range:
    """[exp(-T), exp(T)] such that the second moment of the harmful tokens stays in ``budget`` (Zheng et al. 2025, arXiv 2510.01161).

    Harmful: A > 0 and r > 1, or A < 0 and r < 1. M2 = mean d^2 over them (the statistic). Within the budget, or without harmful
    tokens, the range is [0, inf]. Else T is such that mean min(d^2, T^2) <= budget:

    ``exact``  the largest such T
    ``code``   T^2 = the largest d^2 of a token for which that holds, 0 if there is none: the authors' released code
    """
    d_N, a_N = d_N.detach().double(), advantage_N.detach()
    harmful_N = ((a_N > SIGN_EPS) & (d_N > 0)) | ((a_N < -SIGN_EPS) & (d_N < 0))
    d2_H = d_N[harmful_N].square().sort().values
    n = d2_H.shape[0]
    # sum_j min(d2_j, d2_k) for every k, ascending: what is below k in full, the rest at the level of k
    below_H = torch.cat([d2_H.new_zeros(1), d2_H.cumsum(0)])[:n]
    capped_H = below_H + d2_H * torch.arange(n, 0, -1, device=d2_H.device)
    fits = int((capped_H <= budget * n * (1.0 + 1e-12)).sum())  # sums of n squares, rounded
    moment = float(capped_H[-1]) / n if n else 0.0
    if fits == n:
        return Range(0.0, math.inf, moment)
    if solve == "code":
        t2 = float(d2_H[fits - 1]) if fits else 0.0
    else:
        t2 = (budget * n - float(below_H[fits])) / (n - fits)
    t = math.sqrt(t2)
    return Range(math.exp(-t), math.exp(t), moment)


def bapo_range(
    behavior_N: Tensor,
    d_N: Tensor,
    advantage_N: Tensor,
    *,
    share: float = 0.4,
    form: Literal["net", "parts"] = "net",
    low: tuple[float, float, float] = (0.6, 0.9, 0.02),
    high: tuple[float, float, float] = (1.2, 3.0, 0.05),
) -> Range:
    """Clip bounds under which tokens of A > 0 make up ``share`` of the clipped surrogate (Xi et al. 2025, arXiv 2510.18927).

    ``low`` and ``high`` are (start, end, step). While the share is too small and ``low`` may still be raised by a step, ``high`` is
    raised, or ``low`` where ``high`` has come to its end. With P = sum_{A>0} mu min(r, high) A and N = sum_{A<0} mu max(r, low) A
    (mu the behavior probability), the share is

    ``net``    |P| / |P + N|, as the rule is printed; infinite where the two cancel
    ``parts``  |P| / (|P| + |N|)

    The statistic is the share at the start.
    """
    r_N = exp_clamped(d_N.detach().double())
    x_N = behavior_N.detach().double().exp() * advantage_N.detach().double()
    good_N, bad_N = x_N > 0, x_N < 0
    r_G, x_G, r_B, x_B = r_N[good_N], x_N[good_N], r_N[bad_N], x_N[bad_N]

    def fraction(a: float, b: float) -> float:
        p, n = float((x_G * r_G.clamp(max=b)).sum()), float((x_B * r_B.clamp(min=a)).sum())
        whole = abs(p + n) if form == "net" else p - n
        return p / whole if whole else math.inf

    a, b = low[0], high[0]
    found = start = fraction(a, b)
    while found < share and a + low[2] <= low[1] + 1e-9:  # sums of steps miss the bound by rounding
        if b + high[2] <= high[1] + 1e-9:
            b += high[2]
        else:
            a += low[2]
        found = fraction(a, b)
    return Range(a, b, start)


def binary_kl(p_logp_N: Tensor, q_logp_N: Tensor) -> Tensor:
    """KL between "this token" and "any other" under p and q, _N float64: p log(p/q) + (1-p) log((1-p)/(1-q)) from log p and log q.

    Infinite where q rules out what p allows. Exact also where p or q rounds to 1.
    """
    p, q = p_logp_N.detach().double(), q_logp_N.detach().double()
    mass, rest_p, rest_q = p.exp(), -torch.expm1(p.clamp(max=0.0)), -torch.expm1(q.clamp(max=0.0))
    same = torch.where(mass == 0, torch.zeros_like(p), mass * (p - q))
    rest: Tensor = torch.special.xlogy(rest_p, rest_p) - torch.special.xlogy(rest_p, rest_q)
    return same + rest


def within_tv(current_N: Tensor, old_N: Tensor, advantage_N: Tensor, low: float, high: float) -> Tensor:
    """False where the update would move the token's probability further than it has moved already: A > 0 and p - p_old > ``high``,
    or A <= 0 and p_old - p > ``low`` (DPPO-TV, arXiv 2602.04879). bool _N."""
    moved_N = current_N.detach().double().exp() - old_N.detach().double().exp()
    return ~torch.where(advantage_N > 0, moved_N > high, moved_N < -low)


def within_binary_kl(current_N: Tensor, old_N: Tensor, advantage_N: Tensor, low: float, high: float) -> Tensor:
    """The same with KL(old || current) of the binary distribution as distance (DPPO-KL): False where it exceeds ``high`` and
    p > p_old for A > 0, or ``low`` and p < p_old for A <= 0. bool _N."""
    distance_N = binary_kl(old_N, current_N)
    up_N = (distance_N > high) & (current_N.detach() > old_N)
    down_N = (distance_N > low) & (current_N.detach() < old_N)
    return ~torch.where(advantage_N > 0, up_N, down_N)


def off_policy_sequences(d_N: Tensor, advantage_N: Tensor, rollout_N: Tensor, rollouts: int, delta: float) -> Tensor:
    """True for the tokens of A < 0 in rollouts with mean(log mu - log pi) > ``delta`` (DeepSeek-V3.2, arXiv 2512.02556): bad
    rollouts that the current policy hardly samples any more. bool _N."""
    drift_R = -sequence_mean(d_N.detach(), rollout_N, rollouts)
    return (advantage_N < 0) & (drift_R > delta)[rollout_N]
