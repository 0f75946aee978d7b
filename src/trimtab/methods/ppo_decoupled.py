"""Decoupled PPO: the clip around the proximal policy, the correction from the behavior policy to it as a separate weight.

The bundle ``decoupled_ppo`` is

    decoupled, grpo, ppo_decoupled, norm_clip(1.0)

``decoupled`` (a weigh method) supplies w = pi_proximal/pi_behavior, detached; it multiplies the clipped loss. Both must mean the same
proximal policy: ``anchor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.control.protocol import Composition, Ratio, View
from trimtab.control.proximal import ProximalOptions, check_agreement, need, proximal
from trimtab.methods.ppo_clip import PPOClip, PPOClipOptions

if TYPE_CHECKING:
    from torch import Tensor


class PPODecoupledOptions(PPOClipOptions, ProximalOptions):
    pass


class PPODecoupled(PPOClip):
    """loss_t = w_t max(-u A, -clip(u, 1-low, 1+high) A), u = pi_current/pi_proximal of the token.

    ``recompute``: the proximal policy is the learner as the batch found it, so at the batch's first update u = 1 and nothing is
    clipped: without several updates per batch this is the weighted policy gradient. ``a3po``: log u = (log pi_current - log mu) / age,
    so the clip acts at the first update too, the less the older the token.
    """

    name = "ppo_decoupled"
    source = "AReaL (arXiv 2505.24298); a3po: A-3PO (arXiv 2512.06547), its interpolation factor kept within [0, 1] by us"
    summary = "PPO clip of the token ratio to the proximal policy"
    formula = "L = w max(-u A, -clip(u, 1-l, 1+h) A), u = pi/pi_prox, w = pi_prox/mu"
    cost = "recompute: a scoring forward a batch; a3po: none"
    fails = "The clip bounds only how far one batch moves the policy: staleness is all in the behavior weight, whose variance it inherits."
    docs = "docs/methods/objectives.md"
    Options = PPODecoupledOptions
    options: PPODecoupledOptions
    corrects = frozenset({Ratio.CURRENT_PROXIMAL})

    def __init__(self, options: PPODecoupledOptions) -> None:
        super().__init__(options)
        self.needs = need(options.anchor)

    def check(self, chain: Composition) -> None:
        check_agreement(chain)

    def anchor_N(self, view: View) -> Tensor:
        return proximal(view, self.options.anchor)
