"""What methods are promised, and what they promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from support.updates import (
    MAX_LENGTH,
    behavior,
    make_batch,
    make_learner,
    plain_logps,
    tiny_model,
)
from trimtab.control.protocol import (
    Credit,
    CreditMethod,
    Need,
    ObjectiveMethod,
    View,
    Weighing,
)
from trimtab.control.registry import ChainMember
from trimtab.learner.update import Learner


class Uneven(ObjectiveMethod):
    """An objective that is not linear in what opob may re-weight, and says it is."""

    name, linear = "uneven", True

    def __init__(self) -> None:
        """No options."""

    def objective(self, view: View, w: Weighing, advantage_N: Tensor) -> Tensor:
        return -view.current * advantage_N * (1 + torch.arange(len(advantage_N)) % 2)


def test_an_objective_that_is_not_linear_after_all_is_an_error_not_a_wrong_gradient() -> None:
    model = tiny_model()
    learner, _ = make_learner(model, ["vcpo"])
    learner.chain.members = [ChainMember(Uneven(), "") if m.method.name == "linear" else m for m in learner.chain.members]
    with pytest.raises(RuntimeError, match="the objective is not linear in a rollout-constant advantage"):
        learner.train(make_batch(model))


class Curious(CreditMethod):
    """Credit that reads current log-probs and entropies before the backward."""

    name, needs = "curious", Need.SCORE | Need.VOCAB

    def __init__(self) -> None:
        self.saw: list[Tensor] = []

    def credit(self, view: View, w: Weighing) -> Credit:
        assert view.entropy_N is not None
        self.saw = [view.log_ratio_R, view.entropy_N, w.log_scale_R]
        return Credit(view.reward_R)


@pytest.mark.parametrize("micro_tokens", [None, 40])
def test_a_method_that_needs_scores_sees_them(micro_tokens: int | None) -> None:
    model = tiny_model()
    batch = make_batch(model)
    learner, _ = make_learner(model, ["seq_tis", "grpo"], entropy=False, micro_tokens=micro_tokens)
    curious = Curious()
    learner.chain.members = [ChainMember(curious, "") if m.method.name == "grpo" else m for m in learner.chain.members]
    learner = Learner(learner.model, learner.chain, learner.options, max_length=MAX_LENGTH)
    assert learner.train(batch)[0].applied
    exact = torch.tensor(
        [float((lp.detach() - behavior(r)).sum()) for lp, r in zip(plain_logps(model, batch.rollouts), batch.rollouts, strict=True)]
    )
    torch.testing.assert_close(curious.saw[0], exact.double(), rtol=0, atol=1e-6)
    assert len(curious.saw[1]) == sum(r.actions for r in batch.rollouts)
    torch.testing.assert_close(curious.saw[2], exact.double().clamp(max=float(np.log(8.0))), rtol=0, atol=1e-6)
