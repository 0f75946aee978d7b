"""The bias and variance of a two-channel update (policy weight times advantage estimate), exactly, on a process listed in full.

x = (step, state, action) of a token drawn from the behavior policy, u = w Â S with S = grad log pi; w* = pi/mu, A* = A^pi;
dw = w - w*, D(x) = E[Â | x] - A*, s2(x) = Var[Â | x].

    E[u] - E[w* A* S] = E[dw A* S] + E[w* D S] + E[dw D S]
    tr Var[u]         = E[w^2 s2 |S|^2] + tr Var(w (A* + D) S)
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support import toy_mdp as toy
from trimtab import functional as F

EXACT = 1e-12


class Case:
    """A process, a behavior policy mu, a policy pi, and a critic that is wrong."""

    def __init__(self, seed: int, gamma: float = 1.0, sharpness: float = 1.0) -> None:
        self.process = toy.Toy.random(seed, gamma)
        self.e = self.process.episodes()
        self.mu, self.pi = toy.random_policy(seed + 100, sharpness), toy.random_policy(seed + 200, sharpness)
        self.gamma = gamma
        self.critic = torch.randn(toy.HORIZON, toy.STATES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.log_ratio_N = toy.logp(self.pi, self.e) - toy.logp(self.mu, self.e)
        self.p_N = toy.token_probability(self.mu, self.e)
        self.S_N = toy.score(self.pi, self.e)
        self.star_N = self.process.advantage(self.pi)[self.e.place_N]

    @property
    def value_N(self) -> Tensor:
        return self.critic[self.e.step_N, self.e.state_N]

    def traces(self, **options: object) -> F.traces.Corrected:
        return F.traces.copc(
            self.e.reward_N,
            self.value_N,
            self.log_ratio_N,
            self.e.length_E,
            gamma=self.gamma,
            **options,  # type: ignore[arg-type]
        )

    def mean(self, x: Tensor, p_N: Tensor | None = None) -> Tensor:
        """E of a token column, or of one with further dimensions."""
        p = self.p_N if p_N is None else p_N
        return (p.reshape(-1, *[1] * (x.ndim - 1)) * x).sum(0)

    def trace_variance(self, u: Tensor) -> Tensor:
        return self.mean(u.square().sum(1)) - self.mean(u).square().sum()


def test_the_list_of_episodes_is_complete() -> None:
    c = Case(0)
    assert abs(float(toy.probability(c.mu, c.e).sum()) - 1) < EXACT
    assert abs(float(c.p_N.sum()) - 1) < EXACT


WEIGHTS = {
    "masked": lambda r: torch.where(F.weights.keep_within(r.log(), 0.5, 2.0, strict=True), r, torch.zeros_like(r)),
    "ratio": lambda r: r,
    "none": torch.ones_like,
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weight", sorted(WEIGHTS))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"own": "include"},
        {"low": 1.0, "high": 1.0},
        {"c_bar": 1.0, "lam_actor": 0.8},
        {"low": 0.001, "high": 1.007, "lam_actor": 1.0},
    ],
)
def test_bias_and_variance_decompose(seed: int, weight: str, options: dict[str, object]) -> None:
    c = Case(seed, gamma=0.97)
    A_N, true_N = c.traces(**options).advantage_N, c.log_ratio_N.exp()
    w_N = WEIGHTS[weight](true_N)
    dw_N, D_N = w_N - true_N, toy.given_place(A_N, c.p_N, c.e) - c.star_N
    u = (w_N * A_N)[:, None] * c.S_N

    def of(x_N: Tensor) -> Tensor:
        return c.mean(x_N[:, None] * c.S_N)

    bias = c.mean(u) - of(true_N * c.star_N)
    policy, advantage, interaction = of(dw_N * c.star_N), of(true_N * D_N), of(dw_N * D_N)
    assert float((bias - policy - advantage - interaction).abs().max()) <= EXACT
    if weight == "masked" and options.get("own") != "include":
        assert float(interaction.abs().max()) > 1e-4  # the two errors do multiply

    s2_N = toy.given_place(A_N.square(), c.p_N, c.e) - toy.given_place(A_N, c.p_N, c.e).square()
    noise = c.mean(w_N.square() * s2_N * c.S_N.square().sum(1))
    spread = c.trace_variance((w_N * (c.star_N + D_N))[:, None] * c.S_N)
    assert abs(float(c.trace_variance(u) - noise - spread)) <= EXACT


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lam", [1.0, 0.9])
def test_the_advantage_bias_is_kappa_in_place_of_the_product(seed: int, lam: float) -> None:
    """D(x) against the target sum_l (gamma lam)^l E_mu[prod rho delta]: only steps after the action's own can be wrong."""
    c = Case(seed, gamma=0.97)
    traces = c.traces(lam_actor=lam)
    gap_N = toy.given_place(traces.advantage_N - traces.full_N, c.p_N, c.e)
    delta_N = F.traces.gae(c.e.reward_N, c.value_N, c.e.length_E, gamma=c.gamma, lam_actor=0.0).advantage_N
    rho, kappa, delta = (c.log_ratio_N.exp().tolist(), traces.kappa_N.tolist(), delta_N.tolist())
    want, first = [], 0
    for n in c.e.length_E.tolist():
        for t in range(n):
            total, product = 0.0, 1.0
            for later in range(t + 1, n):
                product *= rho[first + later]
                total += (c.gamma * lam) ** (later - t) * (kappa[first + later] - product) * delta[first + later]
            want.append(total)
        first += n
    want_N = toy.given_place(torch.tensor(want, dtype=torch.float64), c.p_N, c.e)
    assert float((gap_N - want_N).abs().max()) <= EXACT
    last_N = c.e.step_N == toy.HORIZON - 1
    assert float(gap_N[last_N].abs().max()) == 0.0
    assert float(gap_N[~last_N].abs().max()) > 1e-3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lam", [1.0, 0.9, 0.0])
def test_the_full_product_trace_is_unbiased(seed: int, lam: float) -> None:
    """E_mu[full trace | x] = E_pi[GAE | x]: what the same critic would say of continuations by pi itself."""
    c = Case(seed, gamma=0.97, sharpness=1.5)
    full_N = c.traces(lam_actor=lam).full_N
    fresh_N = F.traces.gae(c.e.reward_N, c.value_N, c.e.length_E, gamma=c.gamma, lam_actor=lam).advantage_N
    target_N = toy.given_place(fresh_N, toy.token_probability(c.pi, c.e), c.e)
    assert float((toy.given_place(full_N, c.p_N, c.e) - target_N).abs().max()) <= EXACT


@pytest.mark.parametrize("seed", range(3))
def test_full_product_with_the_true_ratio_leaves_no_bias_whatever_the_critic(seed: int) -> None:
    c = Case(seed)
    full_N, true_N = c.traces(lam_actor=1.0).full_N, c.log_ratio_N.exp()
    u, target = (true_N * full_N)[:, None] * c.S_N, (true_N * c.star_N)[:, None] * c.S_N
    assert float((c.mean(u) - c.mean(target)).abs().max()) <= EXACT
    plain = c.traces(lam_actor=1.0, low=1.0, high=1.0).advantage_N
    stale = c.mean((true_N * plain)[:, None] * c.S_N) - c.mean(target)
    assert float(stale.abs().max()) > 1e-3  # the token ratio alone leaves the staleness of the continuation
    assert float(c.trace_variance(u)) > 0
