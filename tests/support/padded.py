"""One batch in two layouts: padded [B, T] with a mask, as other libraries want it, and the flat view that our methods see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from support.fuzz import Played, play
from support.views import setting
from trimtab import functional as F
from trimtab.control.chain import Chain
from trimtab.control.protocol import Credit, Reduction, Totals, View
from trimtab.control.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class Padded:
    """float64 throughout; ``mask_BT`` may have zeros between ones (observations). Token rewards are 0 but on the last action token."""

    mask_BT: Tensor
    current_BT: Tensor
    old_BT: Tensor  # the behavior policy
    reference_BT: Tensor
    values_BT: Tensor
    entropy_BT: Tensor
    sum_p2_BT: Tensor
    reward_B: Tensor
    group_B: Tensor
    max_length: int

    def flat(self, x_BT: Tensor) -> Tensor:
        return x_BT[self.mask_BT.bool()]

    def grid(self, x_N: Tensor) -> Tensor:
        """The other way; 0 where there is no token."""
        return x_N.new_zeros(self.mask_BT.shape).masked_scatter(self.mask_BT.bool(), x_N)

    def spread(self, x_B: Tensor) -> Tensor:
        """A number per rollout on each of its tokens."""
        return x_B[:, None] * self.mask_BT

    @property
    def token_reward_BT(self) -> Tensor:
        position = torch.arange(self.mask_BT.shape[1]).expand_as(self.mask_BT)
        last_B = (position * self.mask_BT).argmax(1)
        return torch.zeros_like(self.mask_BT).scatter(1, last_B[:, None], self.reward_B[:, None])

    def view(self, reduction: str) -> View:
        length_R = self.mask_BT.sum(1).long()
        rollouts, n = len(length_R), int(length_R.sum())
        groups = int(self.group_B.max()) + 1
        rollout_N = torch.repeat_interleave(length_R)
        zeros = torch.zeros(n, dtype=torch.int64)
        return View(
            behavior_N=self.flat(self.old_BT),
            rollout_N=rollout_N,
            turn_N=zeros,
            age_N=zeros + 1,
            version_N=zeros,
            scale_N=F.reduce.token_scale(reduction, length_R, rollout_N, rollouts=rollouts, tokens=n, max_length=self.max_length).double(),
            current_N=self.flat(self.current_BT),
            proximal_N=self.flat(self.old_BT),
            reference_N=self.flat(self.reference_BT),
            values_N=self.flat(self.values_BT),
            entropy_N=self.flat(self.entropy_BT),
            sum_p2_N=self.flat(self.sum_p2_BT),
            score_R=self.reward_B,
            reward_R=self.reward_B,
            length_R=length_R,
            group_R=self.group_B,
            terminated_R=torch.ones(rollouts, dtype=torch.bool),
            boot_R=torch.zeros(rollouts, dtype=torch.float64),
            groups=groups,
            totals=Totals(
                rollouts=rollouts,
                tokens=n,
                groups=groups,
                max_length=self.max_length,
                reward_std=float(F.advantages.unbiased_std(self.reward_B)),
            ),
        )

    def chain(self, methods: Sequence[str | dict[str, Any]], reduction: str = "token_mean") -> Chain:
        listed = [MethodEntry(name=m) if isinstance(m, str) else MethodEntry.model_validate(m) for m in methods]
        return Chain.resolve(listed, setting(reduction=Reduction(reduction)))

    def credit(self, method: str | dict[str, Any]) -> Credit:
        """Our credit of the batch, no importance weight."""
        chain, view = self.chain([method, "none"]), self.view("token_mean")
        return chain.learner().credit(view, chain.learner().weigh(view))

    def advantage(self, method: str | dict[str, Any]) -> Tensor:
        """The same by token of the padded batch, 0 where there is none."""
        credit = self.credit(method)
        if credit.advantage_N is not None:
            return self.grid(credit.advantage_N)
        assert credit.advantage_R is not None
        return self.spread(credit.advantage_R)

    def played(self, methods: Sequence[str | dict[str, Any]], reduction: str = "token_mean") -> Played:
        """Our loss of the batch under a chain of methods, and its derivatives by token."""
        return play(self.chain(methods, reduction), self.view(reduction))


def drawn(seed: int = 0, *, spread: float = 0.3, observations: bool = False) -> Padded:
    """12 rollouts of 1 to 9 tokens in 3 groups of 4, rewards mixed in two groups and equal in one."""
    g = torch.Generator().manual_seed(seed)
    length_B = torch.tensor([1, 9, 4, 7, 3, 3, 8, 2, 5, 6, 9, 1])
    mask_BT = (torch.arange(9) < length_B[:, None]).double()
    if observations:
        mask_BT[:, [2, 5]] = 0  # two observation tokens inside most rollouts

    def normal() -> Tensor:
        return torch.randn(mask_BT.shape, generator=g, dtype=torch.float64)

    def near(x_BT: Tensor) -> Tensor:
        return (x_BT + spread * normal()).clamp(max=-0.01)  # log-probs: below 0

    old_BT = -normal().abs() - 0.05
    current_BT = near(old_BT)
    p_BT = current_BT.exp()
    return Padded(
        mask_BT=mask_BT,
        current_BT=current_BT,
        old_BT=old_BT,
        reference_BT=near(old_BT),
        values_BT=normal(),
        entropy_BT=normal().abs(),
        sum_p2_BT=p_BT**2 + torch.rand(mask_BT.shape, generator=g, dtype=torch.float64) * (1 - p_BT) ** 2,
        reward_B=torch.tensor([1.0, 0, 0, 1, 1, 1, 1, 1, 0.5, 0, -1, 2]).double(),
        group_B=torch.arange(3).repeat_interleave(4),
        max_length=16,
    )


def same_loss(ours: Played, loss: Tensor, leaf_BT: Tensor, batch: Padded, *, factor: float = 1.0, rtol: float = 1e-6) -> None:
    """Our loss and its gradient are ``factor`` times the peer's, whose loss is a function of ``leaf_BT``."""
    (grad_BT,) = torch.autograd.grad(loss, leaf_BT)
    torch.testing.assert_close(ours.loss, factor * loss.detach(), rtol=rtol, atol=1e-9)
    torch.testing.assert_close(batch.grid(ours.d_N), factor * grad_BT * batch.mask_BT, rtol=rtol, atol=1e-9)
