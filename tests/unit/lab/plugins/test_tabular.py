"""The privileged tabular critic: what it is told, that it learns known values exactly, its label, its refusals."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from support.updates import make_learner, tiny_model
from trimtab.config.load import load
from trimtab.config.run import RunConfig
from trimtab.lab.plugins.tabular import TabularCriticOptions
from trimtab.lab.plugins.tabular_critic import TabularCritic
from trimtab.learner.critic import Critic, Regression
from trimtab.learner.critic_options import CriticOptions
from trimtab.learner.packing import pack
from trimtab.learner.passes import PackedModel
from trimtab.records import Outcome, Rollout, Sampling, Segment, StopReason, TrimtabError

CHARACTERS = "0123456789+-=,"
POSITIONS = 12


def encode(text: str) -> list[int]:
    return [3 + CHARACTERS.index(c) for c in text]


def decode(ids: Sequence[int]) -> str:
    return "".join(CHARACTERS[i - 3] for i in ids if i >= 3)


def rollout(prompt: str, response: str, *, end: bool = True) -> Rollout:
    tokens = np.array([1, *encode(prompt + response), *([2] if end else [])], np.int32)
    mask = np.arange(len(tokens)) > len(prompt)
    zeros = np.zeros(len(tokens), np.float32)
    part = Segment(
        tokens=tokens,
        action_mask=mask,
        behavior_logp=zeros,
        versions=np.where(mask, 0, -1).astype(np.int32),
        turn=zeros.astype(np.int16),
        sampling=Sampling(),
    )
    return Rollout(member=0, segments=(part,), score=0.0, outcome=Outcome.WRONG, stop=StopReason.EOS if end else StopReason.LENGTH)


def critic(**options: object) -> TabularCritic:
    chosen = TabularCriticOptions.model_validate({"kind": "tabular", "optimizer": {"lr": 2e-2}, **options})
    return TabularCritic(chosen, decode, separator=",", positions=POSITIONS, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("11,10", "111111"),  # before each character and the end
        ("12,11", "110000"),
        ("11,9", "11110"),
        ("11,101", "1111110"),  # right until it says too much
        ("11", "111"),  # it ended too early: the last state was still right
        ("", "1"),
        (",", "10"),
    ],
)
def test_it_is_told_whether_the_response_is_still_right(response: str, right: str) -> None:
    assert "".join(str(int(x)) for x in critic().still_right(rollout("4+7-1=", response))) == right
    assert "".join(str(int(x)) for x in critic().still_right(rollout("4+7-1=", response, end=False))) == right[:-1]


def test_negative_totals() -> None:
    assert critic().still_right(rollout("1-9-2=", "-8,-10")).all()
    assert not critic().still_right(rollout("1-9-2=", "8,10"))[1:].any()


def test_a_prompt_without_a_sum_is_refused() -> None:
    with pytest.raises(TrimtabError, match="the prompt shows no sum"):
        critic().still_right(rollout("417=", "1"))


def test_it_learns_known_values_exactly() -> None:
    """Every state's value is a number of its own; the table finds all that occur, and nothing else moves."""
    rollouts = [rollout("4+7-1=", "11,10"), rollout("4+7-1=", "12,11"), rollout("8-3+2=", "5,7"), rollout("8-3+2=", "5,6")]
    packed = pack(rollouts, dtype=torch.float64)
    wanted = torch.linspace(-1, 1, 2 * POSITIONS).reshape(2, POSITIONS)
    one = critic()
    right_N = torch.from_numpy(np.concatenate([one.still_right(r) for r in rollouts]).astype(np.int64))
    position_N = torch.cat([torch.arange(r.actions) for r in rollouts])
    target_N = wanted[right_N, position_N].double()
    assert not one.values(packed).any()
    for _ in range(2000):
        found = one.fit([Regression(packed, target_N, one.values(packed))], tokens=len(target_N))
    np.testing.assert_allclose(one.values(packed), target_N, atol=1e-4)
    assert found.explained_variance == pytest.approx(1.0, abs=1e-6)
    seen = torch.zeros(2, POSITIONS, dtype=torch.bool)
    seen[right_N, position_N] = True
    assert not one.table.detach()[~seen].any()


def test_its_values_of_cut_rollouts_end_at_zero() -> None:
    assert critic().boot(pack([rollout("4+7-1=", "11", end=False)])).tolist() == [0.0]


def test_state_goes_on_bit_for_bit() -> None:
    packed = pack([rollout("4+7-1=", "11,10"), rollout("4+7-1=", "12,11")])
    target_N = torch.arange(packed.targets_N.shape[0], dtype=torch.float32)
    one, two = critic(), critic()
    for _ in range(3):
        one.fit([Regression(packed, target_N, one.values(packed))], tokens=len(target_N))
    two.load_state_dict(one.state_dict())
    for c in (one, two):
        c.fit([Regression(packed, target_N, c.values(packed))], tokens=len(target_N))
    assert torch.equal(one.table, two.table)
    learned = Critic(PackedModel(tiny_model()), CriticOptions())
    with pytest.raises(ValueError, match="of another kind"):
        two.load_state_dict(learned.state_dict())


def test_no_learned_critic_stands_in_for_it() -> None:
    with pytest.raises(ValueError, match="needs the task's answers"):
        make_learner(tiny_model(), ["async_ppo"], critic={"kind": "tabular"})


def configured(*overrides: str) -> RunConfig:
    return load("quickstart", ['methods=["copc"]', 'learner.reduction="token_mean"', 'learner.critic.kind="tabular"', *overrides])


def test_a_run_says_that_its_critic_is_privileged() -> None:
    assert any("the critic is privileged" in said for said in configured().chain().said)
    assert not any("privileged" in said for said in configured('learner.critic.kind="model"').chain().said)
    assert TabularCritic.label == "privileged_critic" != Critic.label


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ('task={kind = "reasoning_gym", name = "gcd"}', "learner.critic.kind = 'tabular': it is told the running totals of chain_sum"),
        ("learner.critic.bootstrap=true", "learner.critic.bootstrap = True: a tabular critic has no value after the last token"),
    ],
)
def test_refusals(override: str, sentence: str) -> None:
    with pytest.raises(TrimtabError, match=sentence.replace("(", "\\(")):
        configured(override)


def test_a_multi_character_token_counts_whole() -> None:
    """Right before a token means that all characters before it are; the tokens need not be single characters."""
    words = {3: "4+7", 4: "-1=", 5: "11,", 6: "10", 7: "12,"}
    told = dataclasses.replace(rollout("4+", "7-1"))  # six tokens of which three are actions: rewritten below
    part = told.segments[0]
    tokens = np.array([1, 3, 4, 5, 6, 2], np.int32)
    mask = np.array([False, False, False, True, True, True])
    zeros = np.zeros(6, np.float32)
    part = dataclasses.replace(
        part, tokens=tokens, action_mask=mask, behavior_logp=zeros, versions=zeros.astype(np.int32), turn=zeros.astype(np.int16)
    )
    one = TabularCritic(
        TabularCriticOptions(), lambda ids: "".join(words.get(i, "") for i in ids), separator=",", positions=3, device=torch.device("cpu")
    )
    assert one.still_right(dataclasses.replace(told, segments=(part,))).all()
    wrong = dataclasses.replace(part, tokens=np.array([1, 3, 4, 7, 6, 2], np.int32))
    assert one.still_right(dataclasses.replace(told, segments=(wrong,))).tolist() == [True, False, False]
