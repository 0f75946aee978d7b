"""A Markov decision process small enough to list every episode, so that expectations are sums and identities hold to rounding.

Two states that go on and a terminal one; two actions; at most ``HORIZON`` steps. All episodes of positive probability are laid end to
end as flat token columns, in rollout order, which is what traces work on.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

STATES, ACTIONS, HORIZON = 2, 2, 4
PAIRS = STATES * ACTIONS


@dataclass(frozen=True, slots=True)
class Episodes:
    """Every episode. ``step_N state_N action_N reward_N`` by token, ``chance_E`` of the environment's own draws by episode."""

    step_N: Tensor
    state_N: Tensor
    action_N: Tensor
    reward_N: Tensor
    episode_N: Tensor
    length_E: Tensor
    chance_E: Tensor

    @property
    def place_N(self) -> Tensor:
        """Number of a token's (step, state, action)."""
        return (self.step_N * STATES + self.state_N) * ACTIONS + self.action_N


@dataclass(frozen=True, slots=True)
class Toy:
    """``go[s, a, s']`` probability of the next state (what is missing ends the episode), ``reward[s, a]``, ``start[s]``."""

    go: Tensor
    reward: Tensor
    start: Tensor
    gamma: float

    @classmethod
    def random(cls, seed: int, gamma: float = 1.0) -> Toy:
        g = torch.Generator().manual_seed(seed)
        go = torch.rand(STATES, ACTIONS, STATES + 1, generator=g, dtype=torch.float64)
        reward = torch.randn(STATES, ACTIONS, generator=g, dtype=torch.float64)
        start = torch.rand(STATES, generator=g, dtype=torch.float64)
        return cls((go / go.sum(-1, keepdim=True))[..., :STATES], reward, start / start.sum(), gamma)

    def episodes(self) -> Episodes:
        rows: list[tuple[list[tuple[int, int]], float]] = []
        for length in range(1, HORIZON + 1):
            for path in itertools.product(itertools.product(range(STATES), range(ACTIONS)), repeat=length):
                chance = float(self.start[path[0][0]])
                for (s, a), (after, _) in itertools.pairwise(path):
                    chance *= float(self.go[s, a, after])
                if length < HORIZON:
                    chance *= 1.0 - float(self.go[path[-1]].sum())
                rows.append((list(path), chance))
        flat = torch.tensor([pair for path, _ in rows for pair in path])
        length_E = torch.tensor([len(path) for path, _ in rows])
        return Episodes(
            step_N=torch.cat([torch.arange(n) for n in length_E.tolist()]),
            state_N=flat[:, 0],
            action_N=flat[:, 1],
            reward_N=self.reward[flat[:, 0], flat[:, 1]],
            episode_N=torch.repeat_interleave(length_E),
            length_E=length_E,
            chance_E=torch.tensor([chance for _, chance in rows], dtype=torch.float64),
        )

    def advantage(self, policy: Tensor) -> Tensor:
        """A^pi at every (step, state, action), by backward induction."""
        value = torch.zeros(STATES, dtype=torch.float64)
        found = []
        for _ in range(HORIZON):
            q = self.reward + self.gamma * self.go @ value
            value = (policy * q).sum(1)
            found.append(q - value[:, None])
        return torch.stack(found[::-1]).flatten()


def random_policy(seed: int, sharpness: float = 1.0) -> Tensor:
    """Probabilities [state, action]."""
    g = torch.Generator().manual_seed(seed)
    return torch.softmax(sharpness * torch.randn(STATES, ACTIONS, generator=g, dtype=torch.float64), 1)


def logp(policy: Tensor, e: Episodes) -> Tensor:
    return policy.log()[e.state_N, e.action_N]


def probability(policy: Tensor, e: Episodes) -> Tensor:
    """Probability of each episode under ``policy``; the probabilities of all sum to 1."""
    log_E = torch.zeros(len(e.length_E), dtype=torch.float64).index_add(0, e.episode_N, logp(policy, e))
    return e.chance_E * log_E.exp()


def token_probability(policy: Tensor, e: Episodes) -> Tensor:
    """Probability that a token drawn from the episodes of ``policy`` is this one; sums to 1."""
    p_E = probability(policy, e)
    return p_E[e.episode_N] / (p_E * e.length_E).sum()


def score(policy: Tensor, e: Episodes) -> Tensor:
    """grad log pi of each token with respect to the logits [N, PAIRS]."""
    out = torch.zeros(len(e.state_N), STATES, ACTIONS, dtype=torch.float64)
    rows = torch.arange(len(e.state_N))
    out[rows, e.state_N] = -policy[e.state_N]
    out[rows, e.state_N, e.action_N] += 1.0
    return out.flatten(1)


def given_place(x_N: Tensor, weight_N: Tensor, e: Episodes) -> Tensor:
    """E[x | step, state, action] under token weights, spread over the tokens."""
    size = HORIZON * PAIRS
    total = torch.zeros(size, dtype=torch.float64).index_add(0, e.place_N, weight_N)
    mean = torch.zeros(size, dtype=torch.float64).index_add(0, e.place_N, weight_N * x_N) / total
    return mean[e.place_N]
