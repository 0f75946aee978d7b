"""Per-token losses, minimized; differentiable in ``current_N`` only. Weights, advantages and old log-probs are constants.

Where ``keep_N`` is False both the loss and its gradient are exactly 0, whatever the inputs hold there.
"""

import torch
from torch import Tensor

from trimtab.functional.ratios import exp_clamped, log_ratio, masked


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

    r = exp(log pi_current - log pi_old), exponent clamped at ``EXP_BOUND``. ``dual_clip`` c > 1 bounds the loss of A < 0 by -A c
    (Ye et al. 2020, arXiv 1912.09729). ``weight_N`` is a detached factor on the clipped loss (decoupled PPO's behavior weight).
    """
    r_N = exp_clamped(log_ratio(current_N, old_N.detach(), keep_N))
    a_N = masked(advantage_N.detach(), keep_N)
    loss_N = torch.maximum(-a_N * r_N, -a_N * r_N.clamp(1.0 - eps_low, 1.0 + eps_high))
    if dual_clip is not None:
        loss_N = torch.where(a_N < 0, torch.minimum(loss_N, -a_N * dual_clip), loss_N)
    return loss_N if weight_N is None else loss_N * masked(weight_N.detach(), keep_N)
