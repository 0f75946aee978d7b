"""Per-token losses, minimized; differentiable in ``current_N`` only. Weights, advantages and old log-probs are constants.

Notation: r = exp(log pi_current - log pi_old) with the exponent clamped at ``EXP_BOUND``, sg = stop-gradient. ``old_N`` is the anchor
of the ratio: the behavior policy, or the proximal one under a decoupled loss. ``weight_N`` is a detached factor on the whole loss.
At r = 1 every loss here has the gradient -w A of the policy gradient.

Where ``keep_N`` is False both the loss and its gradient are exactly 0, whatever the inputs hold there.
"""

import torch
from torch import Tensor

from trimtab.functional.ratios import exp_clamped, log_ratio, masked, sequence_mean, sequence_sum


def linear(current_N: Tensor, weight_N: Tensor, advantage_N: Tensor, keep_N: Tensor | None = None) -> Tensor:
    """loss = -w A log pi, _N: the importance-weighted policy gradient, linear in A (VCPO's objective)."""
    return -masked(weight_N.detach() * advantage_N.detach(), keep_N) * masked(current_N, keep_N)


def ppo_clip(
    current_N: Tensor,
    old_N: Tensor,
    advantage_N: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    dual_clip: float | None = None,
    weight_N: Tensor | None = None,
    keep_N: Tensor | None = None,
) -> Tensor:
    """loss = w max(-A r, -A clip(r, 1 - eps_low, 1 + eps_high)), _N (Schulman et al. 2017, arXiv 1707.06347).

    ``dual_clip`` c > 1 bounds the loss of A < 0 by -A c (Ye et al. 2020, arXiv 1912.09729).
    """
    r_N = exp_clamped(log_ratio(current_N, old_N.detach(), keep_N))
    return _clipped(r_N, advantage_N, eps_low, eps_high, dual_clip, weight_N, keep_N)


def gspo(
    current_N: Tensor,
    old_N: Tensor,
    advantage_N: Tensor,
    rollout_N: Tensor,
    rollouts: int,
    *,
    eps_low: float = 3e-4,
    eps_high: float = 4e-4,
    weight_N: Tensor | None = None,
    keep_N: Tensor | None = None,
) -> Tensor:
    """PPO's clip of the sequence ratio s = exp(mean over the rollout's tokens of log r), _N (Zheng et al. 2025, arXiv 2507.18071).

    Token form: s_it = sg(s_i) pi(t)/sg(pi(t)), whose value is s_i and whose gradient is s_i grad log pi(t). With one advantage a
    rollout and ``seq_mean_token_mean`` that is the gradient of the sequence objective. The mean is over all of the rollout's
    tokens, masked ones included.
    """
    mean_R = sequence_mean(current_N.detach() - old_N.detach(), rollout_N, rollouts)
    current_N = masked(current_N, keep_N)
    log_s_N = masked(mean_R.to(current_N.dtype)[rollout_N], keep_N) + (current_N - current_N.detach())
    return _clipped(exp_clamped(log_s_N), advantage_N, eps_low, eps_high, None, weight_N, keep_N)


def cispo(
    current_N: Tensor,
    old_N: Tensor,
    advantage_N: Tensor,
    *,
    low: float = 0.0,
    high: float = 5.0,
    weight_N: Tensor | None = None,
    keep_N: Tensor | None = None,
) -> Tensor:
    """loss = -w sg(min(max(r, low), high)) A log pi, _N: the weight is clipped, no token loses its gradient (arXiv 2506.13585)."""
    r_N = exp_clamped(log_ratio(current_N.detach(), old_N, keep_N)).clamp(low, high)
    return linear(current_N, _times(r_N, weight_N), advantage_N, keep_N)


def sapo(
    current_N: Tensor,
    old_N: Tensor,
    advantage_N: Tensor,
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
    weight_N: Tensor | None = None,
    keep_N: Tensor | None = None,
) -> Tensor:
    """loss = -w (4/tau) sigmoid(tau (r - 1)) A, tau by the sign of A, _N: a smooth gate instead of a clip (arXiv 2511.20347).

    The gradient is -w A r 4 g (1 - g) with g the sigmoid: largest near r = 1, vanishing on both sides.
    """
    r_N = exp_clamped(log_ratio(current_N, old_N.detach(), keep_N))
    a_N = masked(advantage_N.detach(), keep_N)
    tau_N = torch.where(a_N > 0, r_N.new_tensor(tau_positive), r_N.new_tensor(tau_negative))
    loss_N = -(4.0 / tau_N) * torch.sigmoid(tau_N * (r_N - 1.0)) * a_N
    return _weighted(loss_N, weight_N, keep_N)


def dppo(
    current_N: Tensor,
    old_N: Tensor,
    advantage_N: Tensor,
    trusted_N: Tensor,
    *,
    cap: float = 20.0,
    weight_N: Tensor | None = None,
    keep_N: Tensor | None = None,
) -> Tensor:
    """loss = -w sg(min(r, cap)) A log pi where ``trusted_N``, else 0, _N (arXiv 2602.04879; trusted as in ``clipping.within_*``)."""
    keep_N = trusted_N if keep_N is None else keep_N & trusted_N
    return cispo(current_N, old_N, advantage_N, low=0.0, high=cap, weight_N=weight_N, keep_N=keep_N)


def topr(
    current_N: Tensor,
    old_N: Tensor,
    advantage_N: Tensor,
    rollout_N: Tensor,
    rollouts: int,
    *,
    sequence: bool = True,
    weight_N: Tensor | None = None,
    keep_N: Tensor | None = None,
) -> Tensor:
    """loss = -w t A log pi, _N, with t = 1 for A > 0 and sg(min(ratio, 1)) else (Le Roux et al. 2025, arXiv 2503.14286).

    ``sequence``: the ratio is the product over the rollout's tokens, masked ones included (the paper); else the token's (ROLL).
    """
    d_N = current_N.detach() - old_N.detach()
    if sequence:
        d_N = sequence_sum(d_N, rollout_N, rollouts).to(d_N.dtype)[rollout_N]
    taper_N = torch.where(advantage_N > 0, 1.0, masked(d_N, keep_N).clamp(max=0.0).exp())
    return linear(current_N, _times(taper_N, weight_N), advantage_N, keep_N)


def kimi(
    current_N: Tensor,
    old_N: Tensor,
    advantage_N: Tensor,
    *,
    tau: float = 0.1,
    weight_N: Tensor | None = None,
    keep_N: Tensor | None = None,
) -> Tensor:
    """loss = w (-A log pi + (tau/2) (log r)^2), _N (Kimi k1.5, arXiv 2501.12599): gradient w (-A + tau log r), no ratio."""
    d_N = log_ratio(current_N, old_N.detach(), keep_N)
    loss_N = 0.5 * tau * d_N.square() - masked(advantage_N.detach(), keep_N) * masked(current_N, keep_N)
    return _weighted(loss_N, weight_N, keep_N)


def _clipped(
    r_N: Tensor,
    advantage_N: Tensor,
    eps_low: float,
    eps_high: float,
    dual_clip: float | None,
    weight_N: Tensor | None,
    keep_N: Tensor | None,
) -> Tensor:
    a_N = masked(advantage_N.detach(), keep_N)
    loss_N = torch.maximum(-a_N * r_N, -a_N * r_N.clamp(1.0 - eps_low, 1.0 + eps_high))
    if dual_clip is not None:
        loss_N = torch.where(a_N < 0, torch.minimum(loss_N, -a_N * dual_clip), loss_N)
    return _weighted(loss_N, weight_N, keep_N)


def _weighted(loss_N: Tensor, weight_N: Tensor | None, keep_N: Tensor | None) -> Tensor:
    """``w loss``; the loss is 0 where not kept, and the weight there may be anything."""
    return loss_N if weight_N is None else loss_N * masked(weight_N.detach(), keep_N)


def _times(factor_N: Tensor, weight_N: Tensor | None) -> Tensor:
    return factor_N if weight_N is None else factor_N * weight_N.detach()
