"""OPSM: DeepSeek-V3.2's off-policy sequence mask over PPO's clip."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pydantic import Field

from trimtab import functional as F
from trimtab.control.protocol import View, Weighing
from trimtab.methods.ppo_clip import PPOClip, PPOClipOptions

if TYPE_CHECKING:
    from torch import Tensor


class OPSMOptions(PPOClipOptions):
    delta: float = Field(0.5, ge=0, description="largest mean log(mu/pi) of a bad rollout; TRL's example 0.5, slime's default 1e-4")


class OPSM(PPOClip):
    """PPO's clipped loss, 0 for the tokens of A < 0 in rollouts with mean_t log(mu/pi) > delta.

    A rollout that was bad and that the policy hardly samples any more has nothing left to teach. It is an objective, not a mask of the
    weigh point, because it reads the advantage; masked tokens still count in the denominator. The anchor is the behavior policy, so
    lag and several updates per batch use up the same delta.
    """

    name = "opsm"
    source = "DeepSeek-V3.2 (arXiv 2512.02556), section 3.1; delta unpublished: TRL's `off_policy_mask_threshold` example"
    summary = "PPO clip without bad rollouts that the policy has left"
    formula = "L = 0 if A < 0 and mean_t log(mu/pi) > delta, else PPO clip"
    fails = "A mean over a long rollout hardly moves: with delta 0.5 almost nothing is masked, with 1e-4 about half of what is bad."
    docs = "docs/methods/objectives.md"
    Options = OPSMOptions
    options: OPSMOptions

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        gone_N = F.clipping.off_policy_sequences(view.log_ratio_N, advantage_N, view.rollout_N, view.score_R.shape[0], self.options.delta)
        view.metric("opsm/masked", float(gone_N.sum()), gone_N.shape[0])
        keep_N = ~gone_N if w.keep_N is None else w.keep_N & ~gone_N
        return super().objective(view, dataclasses.replace(w, keep_N=keep_N), advantage_N)
