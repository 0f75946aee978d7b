"""Importance ratios in log space: per token, per sequence, and their geometric mean; the proximal policy without a forward."""

import torch
from torch import Tensor

EXP_BOUND = 20.0
"""|exponent| allowed in ``exp_clamped``: e^20 = 4.9e8, whose square and whose sum over 10^9 tokens stay finite in float32, and far
outside every ratio that a clip or a truncation lets through (the bound of veRL and slime)."""


def masked(x: Tensor, keep: Tensor | None) -> Tensor:
    """``x`` where ``keep``, 0 elsewhere; ``x`` itself where keep is None.

    A select, not a product: a NaN or infinity that is masked out reaches neither the value nor the gradient. Apply it to the
    *inputs* of exp and log, never to their results.
    """
    return x if keep is None else torch.where(keep, x, torch.zeros((), dtype=x.dtype, device=x.device))


def log_ratio(target_N: Tensor, sampled_N: Tensor, keep_N: Tensor | None = None) -> Tensor:
    """d = log pi_target - log pi_sampled per token, 0 where ``keep_N`` is False. Shape _N, differentiable."""
    return masked(target_N, keep_N) - masked(sampled_N, keep_N)


def sequence_sum(x_N: Tensor, rollout_N: Tensor, rollouts: int) -> Tensor:
    """s_R = sum of ``x_N`` over each rollout's tokens, in float64; 0 for a rollout without tokens. Differentiable.

    With x = the token log-ratio, exp(s_R) is the sequence importance weight: a product over tokens, not normalized by length.
    """
    return torch.zeros(rollouts, dtype=torch.float64, device=x_N.device).index_add(0, rollout_N, x_N.double())


def sequence_mean(x_N: Tensor, rollout_N: Tensor, rollouts: int) -> Tensor:
    """Mean of ``x_N`` over each rollout's tokens, in float64; 0 for a rollout without tokens.

    With x = the token log-ratio, exp of it is the geometric-mean ratio of the rollout.
    """
    length_R = torch.bincount(rollout_N, minlength=rollouts).clamp(min=1)
    return sequence_sum(x_N, rollout_N, rollouts) / length_R


def sequence_max(x_N: Tensor, rollout_N: Tensor, rollouts: int) -> Tensor:
    """Largest ``x_N`` of each rollout, in float64; 0 for a rollout without tokens. A NaN is the largest."""
    top_R = torch.zeros(rollouts, dtype=torch.float64, device=x_N.device)
    return top_R.scatter_reduce(0, rollout_N, x_N.double(), "amax", include_self=False)


def exp_clamped(s: Tensor, bound: float = EXP_BOUND) -> Tensor:
    """exp(min(max(s, -bound), bound)): finite, with zero gradient beyond the bound, for every s but NaN, which stays NaN."""
    return s.clamp(-bound, bound).exp()


def interpolated(current_N: Tensor, behavior_N: Tensor, age_N: Tensor) -> Tensor:
    """Proximal log-probs without a forward: log mu + a (log pi_current - log mu), detached (A-3PO, arXiv 2512.06547).

    a = (v_prox - v_mu) / (v_current - v_mu) with v_prox = v_current - 1, hence (age - 1) / age per token; within [0, 1]. A token of
    age 1 has the proximal policy mu, one of age 0 the current policy itself.
    """
    age_N = age_N.to(behavior_N.dtype)
    a_N = torch.where(age_N > 0, (age_N - 1.0).clamp(min=0.0) / age_N.clamp(min=1.0), 1.0)
    return behavior_N + a_N * (current_N.detach() - behavior_N)
