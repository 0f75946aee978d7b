"""One denominator: any split into micro-batches gives the same gradient and the same statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from support.formulas import reference, sequence_weight, standardized
from support.updates import (
    MAX_LENGTH,
    behavior,
    gradient_of,
    make_batch,
    make_chain,
    plain_logps,
    tiny_model,
    worst,
)
from trimtab.learner.options import LearnerOptions
from trimtab.learner.passes import Pass
from trimtab.learner.update import Learner
from trimtab.records import Rollout

SPLITS = [1, 25, 60, 200, 10_000]


@pytest.mark.parametrize(
    "methods", [["seq_tis", "grpo"], ["ppo_clip", {"name": "grpo", "std": "batch"}], ["vcpo"]], ids=["tis", "ppo", "vcpo"]
)
@pytest.mark.parametrize("reduction", ["seq_mean_token_mean", "token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"])
def test_any_split_into_micro_batches_gives_the_same_gradient(methods: list[Any], reduction: str) -> None:
    model = tiny_model()
    batch = make_batch(model)
    want = gradient_of(model, methods, batch, reduction=reduction)
    for micro_tokens in SPLITS:
        assert worst(gradient_of(model, methods, batch, reduction=reduction, micro_tokens=micro_tokens), want) < 1e-10


@pytest.mark.parametrize(
    "methods", [["seq_tis", "grpo"], ["vcpo"], ["tok_tis", {"name": "opob", "weighting": "exact"}]], ids=["tis", "vcpo", "token"]
)
def test_any_split_gives_the_same_gradient_in_float32(methods: list[Any]) -> None:
    model = tiny_model(torch.float32)
    batch = make_batch(model)
    want = gradient_of(model, methods, batch)
    for micro_tokens in SPLITS:
        assert worst(gradient_of(model, methods, batch, micro_tokens=micro_tokens), want) < 2e-5


@pytest.mark.parametrize("std", ["group", "population", "batch", "none"])
@pytest.mark.parametrize("norms", ["bookkeeping", "two_pass", "two_buffer"])
def test_credit_of_split_groups_is_that_of_whole_ones(std: str, norms: str) -> None:
    model = tiny_model()
    batch = make_batch(model)
    methods = ["vcpo", {"name": "opob", "std": std}]
    want = gradient_of(model, methods, batch)
    for micro_tokens in (1, 40, 120):
        assert worst(gradient_of(model, methods, batch, micro_tokens=micro_tokens, norms=norms), want) < 1e-10


def test_a_mask_never_changes_the_denominator() -> None:
    model = tiny_model()
    batch = make_batch(model, spread=0.6)
    logps = plain_logps(model, batch.rollouts)
    ratio = np.array([float((lp.detach() - behavior(r)).sum().exp()) for lp, r in zip(logps, batch.rollouts, strict=True)])
    high = float(np.median(ratio))
    masked = {id(r) for r, w in zip(batch.rollouts, ratio, strict=True) if w > high}

    def loss(logp: Tensor, r: Rollout, a: float) -> Tensor:
        return (0.0 if id(r) in masked else -a * sequence_weight(logp, r, cap=1e9)) * logp

    want = reference(model, batch, loss, standardized(batch))
    for micro_tokens in (None, 50):
        assert worst(gradient_of(model, [{"name": "seq_mis", "high": high}, "grpo"], batch, micro_tokens=micro_tokens), want) < 1e-10


class TableModel:
    """log p of a token = log_softmax(table)[token], whatever stands before it: its bits do not depend on how rollouts are packed."""

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self) -> None:
        self.table = nn.Parameter(torch.randn(17, generator=torch.Generator().manual_seed(0)))

    def parameters(self) -> list[nn.Parameter]:
        return [self.table]

    def names(self) -> list[str]:
        return ["table.weight"]

    def forward(self, packed: Any, *, norms: bool = False, vocab: bool = False) -> Pass:
        logp = torch.log_softmax(self.table, 0)
        entropy = -(logp.exp() * logp).sum().expand(len(packed.targets_H)) * (1 + packed.targets_H / 17)
        return Pass(packed, (logp[packed.targets_H], entropy if vocab else None, None))

    def score(self, packed: Any) -> Tensor:
        return self.forward(packed).current_N


def table_learner(**options: Any) -> Learner:
    chosen = LearnerOptions.model_validate(options)
    chain, _ = make_chain(["seq_tis", "grpo", "ess"], stop=False)
    return Learner(TableModel(), chain.learner(), chosen, max_length=MAX_LENGTH)  # type: ignore[arg-type]


def test_statistics_are_the_same_to_the_bit_under_any_split() -> None:
    batch = make_batch(tiny_model(torch.float32), spread=0.6)

    def run(micro_tokens: int | None) -> tuple[Any, ...]:
        (result,) = table_learner(micro_tokens=micro_tokens).train(batch)
        seen = result.seen
        assert seen is not None
        assert seen.entropy_N is not None
        return seen.log_ratio_R.tolist(), seen.log_ratio_N.tolist(), seen.age_N.tolist(), seen.entropy_N.tolist(), result.multiplier

    want = run(None)
    assert 0 < want[-1] < 1
    logp = torch.log_softmax(TableModel().table.detach(), 0).double()
    order = [sum(float(logp[s.tokens[s.action_mask]].sum()) for s in r.segments) - float(behavior(r).sum()) for r in batch.rollouts]
    assert want[0] == pytest.approx(order, abs=1e-5)  # in the order of the batch's rollouts, silent ones in their place
    assert len(want[1]) == sum(r.actions for r in batch.rollouts)
    for micro_tokens in SPLITS:
        assert run(micro_tokens) == want
