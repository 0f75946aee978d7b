"""Advantages and returns per token from a value function: GAE, COPC's weighted residuals, V-trace.

``_N`` are action tokens in rollout order, ``length_R`` how many each rollout has: observations between two turns are not there, so
values and traces pass over them unchanged. ``boot_R`` is the value after the last token (None or 0: the rollout ended). Results are
float64. A NaN stays in its rollout and comes out as NaN; nothing is dropped here.

With the residual delta_t = r_t + gamma V_{t+1} - V_t every trace is one recurrence G_t = x_t + c_t G_{t+1}. It runs over all rollouts at
once from their last tokens on: tokens are sorted by distance from the end, and a step is one product and one sum.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from trimtab.functional.ratios import exp_clamped

Own = Literal["exclude", "include"]
"""Is the residual at the action's own step weighted inside its advantage? ``exclude``: the policy weight supplies that ratio."""

WHITEN_EPS = 1e-8
WHITEN_FLOOR = 1e-12  # a smaller variance is rounding: center only


class Traces(NamedTuple):
    """``advantage_N`` for the actor, ``return_N`` as the critic's targets."""

    advantage_N: Tensor
    return_N: Tensor


class Corrected(NamedTuple):
    """COPC's traces with what its diagnostics need: the weight ``kappa_N`` of each residual, and ``full_N``, the advantage under the
    untruncated product of ratios that kappa stands in for (may overflow to infinity)."""

    advantage_N: Tensor
    return_N: Tensor
    kappa_N: Tensor
    full_N: Tensor


class Order(NamedTuple):
    """Tokens by distance from the end of their rollout: ``counts[j]`` rollouts have a token at distance j."""

    rollout_N: Tensor
    last_N: Tensor  # bool: the rollout's last token
    perm_N: Tensor
    counts: list[int]


def order(length_R: Tensor) -> Order:
    """The order in which a trace visits the tokens of rollouts of these lengths."""
    rollouts, n = length_R.shape[0], int(length_R.sum())
    rollout_N = torch.repeat_interleave(length_R, output_size=n)
    distance_N = (length_R.cumsum(0) - 1)[rollout_N] - torch.arange(n, device=length_R.device)
    rank_R = torch.empty_like(length_R)
    rank_R[length_R.argsort(descending=True, stable=True)] = torch.arange(rollouts, device=length_R.device)
    perm_N = (distance_N * rollouts + rank_R[rollout_N]).argsort()
    return Order(rollout_N, distance_N == 0, perm_N, torch.bincount(distance_N).tolist())


def scan(x_KN: Tensor, c_KN: Tensor, o: Order) -> Tensor:
    """G_t = x_t + c_t G_{t+1}, 0 after the last token; K recurrences in one pass, [K, N].

    Products and sums are separate operations, so that equal inputs give equal bits whatever K and the other rollouts are.
    """
    if not o.counts:
        return torch.empty_like(x_KN)
    g, out = x_KN.new_zeros(x_KN.shape[0], o.counts[0]), []
    for x, c in zip(x_KN[:, o.perm_N].split(o.counts, 1), c_KN[:, o.perm_N].split(o.counts, 1), strict=True):
        g = x + c * g[:, : x.shape[1]]
        out.append(g)
    G_KN = torch.empty_like(x_KN)
    G_KN[:, o.perm_N] = torch.cat(out, 1)
    return G_KN


def _next(x_N: Tensor, last_N: Tensor, after: Tensor) -> Tensor:
    """x_{t+1}, and ``after`` at a rollout's last token."""
    return torch.where(last_N, after, x_N.roll(-1, -1))


def _residual(reward_N: Tensor, value_N: Tensor, boot_R: Tensor | None, gamma: float, o: Order) -> Tensor:
    value_N = value_N.double()
    after = value_N.new_zeros(()) if boot_R is None else boot_R.double()[o.rollout_N]
    return reward_N.double() + gamma * _next(value_N, o.last_N, after) - value_N


def _per_token(x: float | Tensor, o: Order) -> Tensor:
    """A number, or a rollout column, per token."""
    if isinstance(x, Tensor):
        return x.double()[o.rollout_N]
    return torch.full(o.rollout_N.shape, x, dtype=torch.float64, device=o.rollout_N.device)


def gae(
    reward_N: Tensor,
    value_N: Tensor,
    length_R: Tensor,
    *,
    boot_R: Tensor | None = None,
    gamma: float = 1.0,
    lam_actor: float | Tensor = 0.95,
    lam_critic: float | Tensor = 1.0,
) -> Traces:
    """A_t = sum_l (gamma lam)^l delta_{t+l}; R_t = V_t + the same with ``lam_critic`` (Schulman et al. 2016, arXiv 1506.02438, Eq. 16).

    A lambda is a number or one a rollout.
    """
    o = order(length_R)
    delta_N = _residual(reward_N, value_N, boot_R, gamma, o)
    lam_KN = torch.stack([_per_token(lam_actor, o), _per_token(lam_critic, o)])
    actor_N, critic_N = scan(delta_N.expand(2, -1), gamma * lam_KN, o)
    return Traces(actor_N, value_N.double() + critic_N)


def copc(
    reward_N: Tensor,
    value_N: Tensor,
    log_ratio_N: Tensor,
    length_R: Tensor,
    *,
    boot_R: Tensor | None = None,
    gamma: float = 1.0,
    lam_actor: float | Tensor = 0.95,
    lam_critic: float | Tensor = 1.0,
    low: float = 0.5,
    high: float = 2.0,
    own: Own = "exclude",
    c_bar: float | None = None,
) -> Corrected:
    """GAE with residuals weighted by kappa_t = clip(rho_t, low, high), rho_t = exp(log_ratio_t) (our reading of arXiv 2610.09597).

        G_t = kappa_t delta_t + gamma lam c_t G_{t+1}      c_t = 1, or min(c_bar, rho_t)
        A_t = delta_t + gamma lam G_{t+1}  (``exclude``)   or G_t  (``include``)
        R_t = V_t + G_t                                    with ``lam_critic``

    low = high = 1 without ``c_bar`` is :func:`gae` to the bit. ``full_N`` is A_t of G_t = rho_t (delta_t + gamma lam G_{t+1}).
    """
    o = order(length_R)
    delta_N = _residual(reward_N, value_N, boot_R, gamma, o)
    rho_N = exp_clamped(log_ratio_N.double())
    kappa_N = rho_N.clamp(low, high)
    decay_KN = gamma * torch.stack([_per_token(lam_actor, o), _per_token(lam_critic, o)])
    coefficient_KN = decay_KN if c_bar is None else decay_KN * rho_N.clamp(max=c_bar)
    x_KN = torch.stack([kappa_N * delta_N, kappa_N * delta_N, rho_N * delta_N])
    G_KN = scan(x_KN, torch.cat([coefficient_KN, (decay_KN[0] * rho_N)[None]]), o)
    advantage_KN = G_KN if own == "include" else delta_N + decay_KN[0] * _next(G_KN, o.last_N, G_KN.new_zeros(()))
    return Corrected(advantage_KN[0], value_N.double() + G_KN[1], kappa_N, advantage_KN[2])


def vtrace(
    reward_N: Tensor,
    value_N: Tensor,
    log_ratio_N: Tensor,
    length_R: Tensor,
    *,
    boot_R: Tensor | None = None,
    gamma: float = 1.0,
    lam: float | Tensor = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> Traces:
    """V-trace (Espeholt et al. 2018, arXiv 1802.01561, Eq. 1 and Remark 2): returns v_t, advantages r_t + gamma v_{t+1} - V_t.

        v_t = V_t + rho_t delta_t + gamma c_t (v_{t+1} - V_{t+1})      rho = min(rho_bar, ratio), c = lam min(c_bar, ratio)

    The published policy gradient multiplies the advantage by rho_t: the weigh method does that here.
    """
    o = order(length_R)
    delta_N = _residual(reward_N, value_N, boot_R, gamma, o)
    ratio_N = exp_clamped(log_ratio_N.double())
    c_N = gamma * (_per_token(lam, o) * ratio_N.clamp(max=c_bar))
    G_N = scan((ratio_N.clamp(max=rho_bar) * delta_N)[None], c_N[None], o)[0]
    advantage_N = delta_N + gamma * _next(G_N, o.last_N, G_N.new_zeros(()))
    return Traces(advantage_N, value_N.double() + G_N)


def length_lambda(length_R: Tensor, alpha: float) -> Tensor:
    """lambda = 1 - 1 / (alpha L) per rollout, at least 0: the trace reaches as far as the rollout is long."""
    return (1.0 - 1.0 / (alpha * length_R.double().clamp(min=1))).clamp(min=0.0)


def whiten(x_N: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) over all tokens, variance unbiased, float64.

    A variance below 1e-12 only centers, and a single token stays as it is: there is nothing to compare it with.
    """
    x_N = x_N.double()
    if x_N.shape[0] < 2:
        return x_N
    centered_N, variance = x_N - x_N.mean(), x_N.var()
    # As a comparison that is False for NaN: a broken advantage must come out as NaN.
    return torch.where(variance < WHITEN_FLOOR, centered_N, centered_N / (variance + WHITEN_EPS).sqrt())


def value_loss(value_N: Tensor, return_N: Tensor, old_N: Tensor, clip: float | None = None) -> Tensor:
    """0.5 (V - R)^2 per token, with ``clip`` the larger of that and 0.5 (V_old + clamp(V - V_old, -clip, clip) - R)^2."""
    error2_N = (value_N - return_N.detach()).square()
    if clip is not None:
        old_N = old_N.detach()
        near_N = old_N + (value_N - old_N).clamp(-clip, clip)
        error2_N = torch.maximum(error2_N, (near_N - return_N.detach()).square())
    return 0.5 * error2_N


def explained_variance(n: float, r: float, r2: float, e: float, e2: float) -> float | None:
    """1 - Var[e] / Var[R] from sums over ``n`` tokens of R, R^2, e = R - V and e^2; None where R is constant."""
    spread = r2 / n - (r / n) ** 2
    return 1.0 - (e2 / n - (e / n) ** 2) / spread if spread > WHITEN_FLOOR else None
