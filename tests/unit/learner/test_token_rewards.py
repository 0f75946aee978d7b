"""From a verdict to what the learner reads: the reward of each token is where it was earned, and sums to the rollout's reward."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from support.tiny import tiny_tokenizer
from trimtab.control.protocol import Notes, Reduction, View
from trimtab.engines.protocol import Completion
from trimtab.lab.plugins.running_totals import local_steps
from trimtab.learner.fill import make_view
from trimtab.learner.packing import pack
from trimtab.learner.views import drop_invalid, totals_of
from trimtab.records import Group, Outcome, Rollout, Sampling, Slot, StopReason
from trimtab.rollout import assemble
from trimtab.rollout.render import Renderer
from trimtab.rollout.steps import rewarded
from trimtab.tasks.protocol import Step, Verdict
from trimtab.tasks.shaping import ShapingOptions

TOKENIZER = tiny_tokenizer()
RENDERER = Renderer(TOKENIZER, context=64, max_new_tokens=32, stop_ids=(2,))
PROMPT = np.array([1, *TOKENIZER.encode("4+7-1=", add_special_tokens=False)], np.int32)


def roll(response: str, shaping: ShapingOptions, steps: tuple[Step, ...] | None, score: float = 0.0) -> Rollout:
    tokens = np.array([*TOKENIZER.encode(response, add_special_tokens=False), 2], np.int32)
    n = len(tokens)
    completion = Completion(
        id=0,
        tokens=tokens,
        logp=np.full(n, -1.0, np.float32),
        versions=np.zeros(n, np.int32),
        incarnation=0,
        stop=StopReason.EOS,
        started=0.0,
        finished=0.0,
        kept=None,
    )
    verdict = Verdict(score=score, outcome=Outcome.WRONG, steps=steps)
    (part,), reward = rewarded([assemble.segment(PROMPT, completion, Sampling())], verdict, shaping, RENDERER.completing)
    return assemble.rollout(0, part, completion, verdict, 0.0, reward)


def view(*rollouts: Rollout) -> View:
    group = Group(slot=Slot(0, 0), prompt=0, attempt=0, seed=0, task="t", source="s", rollouts=rollouts)
    (clean,) = drop_invalid([group]).groups
    packed = pack(clean.rollouts)
    return make_view(
        packed,
        clean.rollouts,
        [0] * len(rollouts),
        version=0,
        reduction=Reduction("seq_mean_token_mean"),
        totals=totals_of([clean], 32),
        mini_step=0,
        recorder=Notes(),
        device=torch.device("cpu"),
        dtype=torch.float32,
    )


def local(response: str, shaping: ShapingOptions) -> Rollout:
    return roll(response, shaping, local_steps("4 + 7 - 1", response, ","))


@pytest.mark.parametrize("shaping", [ShapingOptions(), ShapingOptions(scale=2.0, offset=-1.0)])
def test_token_rewards_sum_to_the_sequence_reward(shaping: ShapingOptions) -> None:
    v = view(local("11,10", shaping), local("12,11", shaping), local("9", shaping), roll("11,10", shaping, None, 1.0))
    s, o = shaping.scale, shaping.offset
    half = s / 2
    assert v.token_reward_N.tolist() == [
        *[0, half, 0, 0, half, o],  # 1 1 , 1 0 <eos>
        *[0, 0, 0, 0, half, o],
        *[0, o],
        *[0, 0, 0, 0, 0, s + o],  # without steps: all of it at the end
    ]
    assert v.sum_R(v.token_reward_N).tolist() == v.reward_R.tolist() == [s + o, half + o, o, s + o]
    assert v.score_R.tolist() == [0, 0, 0, 1], "filters and evaluations go by the score"


def test_a_third_and_a_seventh_sum_exactly() -> None:
    plain = ShapingOptions(scale=0.3, offset=0.1)
    rollouts = [roll("1,2,3,4,5,6,7"[: 2 * n - 1], plain, tuple(Step(1 / 7, 2 * i + 1) for i in range(n))) for n in range(1, 8)]
    v = view(*rollouts)
    assert torch.equal(v.sum_R(v.token_reward_N), v.reward_R)
    assert len(set(v.reward_R.tolist())) == 7
    assert v.reward_R.tolist() == pytest.approx([0.1 + 0.3 * n / 7 for n in range(1, 8)])


def test_the_reward_of_a_token_that_left_the_mask_is_not_lost() -> None:
    whole = local("11,10", ShapingOptions())
    (part,) = whole.segments
    logp = part.behavior_logp.copy()
    logp[np.flatnonzero(part.action_mask)[1]] = np.nan
    v = view(dataclasses.replace(whole, segments=(dataclasses.replace(part, behavior_logp=logp),)))
    assert v.token_reward_N.tolist() == [0, 0, 0, 0.5, 0.5]
    assert v.reward_R.tolist() == [1.0]
