"""``examples/two_processes.py``: two processes whose timing decides what is sampled when, held to what must be true whatever it decides.

One recorded run is judged three ways: every token is scored again under the version that it claims; no token is older than the bound;
and its batches, replayed through the library's learner, move the weights as they moved the example's. What a swap in the middle of
rollouts does is shown on a sampler whose swaps the test times itself.
"""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor, nn

from support import examples, rewards, runs
from support.tiny import tiny_policy, tiny_tokenizer
from support.updates import exact_norms, group, make_learner, weights, worst
from trimtab.records import Batch, Outcome, Rollout, Sampling, Segment, StopReason

two = examples.load("two_processes")
BATCHES, LAG, GROUPS, MEMBERS, NEW_TOKENS, LR = 24, 3, 4, 4, 8, 5e-3


def model(seed: int = 0) -> nn.Module:
    return exact_norms(tiny_policy(dtype=torch.float64, seed=seed, hidden=16, intermediate=24).model)


def args(**options: Any) -> Any:
    return two.Args(**{"batches": BATCHES, "lag": LAG, "prompts": GROUPS, "group": MEMBERS, "new_tokens": NEW_TOKENS, "lr": LR} | options)


@dataclass
class Recorded:
    models: list[nn.Module]  # the policy of every version
    stats: list[dict[str, float]]
    batches: list[Any]


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    policy = model()
    out = Recorded([copy.deepcopy(policy)], [], [])
    for stats, batch in two.train(policy, tiny_tokenizer(), runs.questions(), rewards.one, args()):
        out.models.append(copy.deepcopy(policy))
        out.stats.append(stats)
        out.batches.append(batch)
    return out


def again(models: list[nn.Module], tokens: Tensor, versions: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob of each sampled token under the version that it claims, and the token that ``u`` draws from it: [R, T] each."""
    logp, drawn = torch.zeros(versions.shape, dtype=torch.float64), torch.full_like(tokens, -1)
    for v in versions.unique().tolist():
        if v >= 0:
            with torch.no_grad():
                all_logp = models[v](tokens).logits.log_softmax(-1)
            r, t = (versions == v).nonzero(as_tuple=True)
            said = all_logp[r, t - 1]
            cdf = said.exp().cumsum(-1)
            logp[r, t] = said.gather(-1, tokens[r, t, None])[:, 0]
            drawn[r, t] = (cdf > (u[r, t] * cdf[:, -1] * (1 - 2.0**-52))[:, None]).int().argmax(-1)
    return logp, drawn


def test_every_token_was_drawn_from_the_version_that_it_claims(recorded: Recorded) -> None:
    a = args()
    for n, batch in enumerate(recorded.batches):
        streams = [s for prompt in range(n * GROUPS, (n + 1) * GROUPS) for s in two.start(prompt, runs.questions(), a)[1]]
        begin = (batch.end - batch.action.sum(1)).tolist()
        u = torch.zeros(batch.tokens.shape, dtype=torch.float64)
        for r, t in batch.action.nonzero().tolist():
            u[r, t] = two.uniform(streams[r], t - begin[r])
        logp, drawn = again(recorded.models, batch.tokens, batch.versions, u)
        torch.testing.assert_close(batch.behavior.double(), logp, rtol=0, atol=1e-6)  # recorded in float32
        assert torch.equal(drawn[batch.action], batch.tokens[batch.action])


def test_no_token_is_older_than_the_bound_and_none_is_sampled_twice(recorded: Recorded) -> None:
    for n, (stats, batch) in enumerate(zip(recorded.stats, recorded.batches, strict=True)):
        versions = [row[action].tolist() for row, action in zip(batch.versions, batch.action, strict=True)]
        assert all(v == sorted(v) for v in versions)  # never back to older weights
        ages = n - batch.versions[batch.action]
        assert 0 <= int(ages.min()) <= int(ages.max()) <= LAG
        assert stats["oldest"] == int(ages.max())
        assert stats["age"] == pytest.approx(float(ages.double().mean()))
        assert stats["swapped"] == np.mean([len(set(v)) > 1 for v in versions])
    assert recorded.stats[0]["oldest"] == 0


def as_records(batch: Any, number: int, version: int) -> Batch:
    """The example's batch in the library's words."""
    groups = []
    for g in range(GROUPS):
        members = []
        for i in range(MEMBERS):
            r = g * MEMBERS + i
            n = int(batch.end[r])
            segment = Segment(
                tokens=batch.tokens[r, :n].numpy().astype(np.int32),
                action_mask=batch.action[r, :n].numpy(),
                behavior_logp=batch.behavior[r, :n].numpy(),
                versions=batch.versions[r, :n].numpy().astype(np.int32),
                turn=np.zeros(n, np.int16),
                sampling=Sampling(),
            )
            score = float(batch.reward[r])
            outcome = Outcome.CORRECT if score else Outcome.WRONG
            members.append(Rollout(member=i, segments=(segment,), score=score, outcome=outcome, stop=StopReason.EOS))
        groups.append(group(number * GROUPS + g, members))
    return Batch(number=number, version=version, groups=tuple(groups))


def test_the_librarys_learner_makes_the_same_updates_of_the_recorded_batches(recorded: Recorded) -> None:
    learner, _ = make_learner(recorded.models[0], ["vcpo"], optimizer={"lr": LR})
    gaps = []
    for n, (stats, batch) in enumerate(zip(recorded.stats, recorded.batches, strict=True)):
        (result,) = learner.train(as_records(batch, n, learner.optimizer.applied))
        assert result.applied == (stats["lr"] > 0)
        assert result.multiplier * LR == pytest.approx(stats["lr"], rel=1e-9)
        gaps.append(
            max(float((a - b).detach().abs().max()) for a, b in zip(weights(learner), recorded.models[n + 1].parameters(), strict=True))
        )
    assert max(gaps) <= 1e-12
    assert worst(weights(learner), list(recorded.models[0].parameters())) > 1e-2  # and they moved
    assert sum(s["lr"] > 0 for s in recorded.stats) >= 8


def test_it_learns(recorded: Recorded) -> None:
    first, last = (float(np.mean([s["reward"] for s in part])) for part in (recorded.stats[:5], recorded.stats[-8:]))
    assert last > first + 0.2


# ------------------------------------------------------------------------------------------------------- swaps that the test times


def sampler(**options: Any) -> Any:
    return two.Sampler(model(0), tiny_tokenizer(), runs.questions(), rewards.one, args(**options))


def test_weights_swapped_in_the_middle_of_rollouts_draw_the_tokens_from_there_on() -> None:
    s, models = sampler(live=3), [model(0), model(1), model(2)]
    finished = []
    for step in range(NEW_TOKENS):
        if step in (2, 5):
            version = s.version + 1
            s.swap(models[version], version)
        finished += s.step()
    rollouts = [r for done in finished for r in done if r.prompt < 3]  # what was live from the first token on
    assert len(rollouts) == 3 * MEMBERS
    for r in rollouts:
        assert r.versions == [0, 0, 1, 1, 1, 2, 2, 2][: len(r.versions)]
    assert sum(r.versions[-1] == 2 for r in rollouts) > MEMBERS
    batch = two.collate(rollouts)
    u = torch.zeros(batch.tokens.shape, dtype=torch.float64)
    for i, r in enumerate(rollouts):
        u[i, r.begin : len(r.tokens)] = torch.tensor([two.uniform(r.stream, p) for p in range(len(r.versions))], dtype=torch.float64)
    logp, drawn = again(models, batch.tokens, batch.versions, u)
    torch.testing.assert_close(batch.behavior.double(), logp, rtol=0, atol=1e-6)
    assert torch.equal(drawn[batch.action], batch.tokens[batch.action])


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_it_starts_what_the_bound_allows_and_then_is_idle(lag: int) -> None:
    s, same = sampler(lag=lag, live=100), model(0)
    for version in range(BATCHES + 2):
        s.swap(same, version)
        while not s.idle:
            s.step()
        assert s.prompt == min(version + lag + 1, BATCHES) * GROUPS


# ------------------------------------------------------------------------------------------------------------ ends of processes


def children() -> list[psutil.Process]:
    return [c for c in psutil.Process().children() if "spawn_main" in " ".join(c.cmdline())]


def started() -> tuple[Iterator[Any], psutil.Process]:
    before = {c.pid for c in children()}
    steps = two.train(model(), tiny_tokenizer(), runs.questions(), rewards.one, args(batches=1000))
    next(steps)
    (child,) = [c for c in children() if c.pid not in before]
    return steps, child


def test_a_dead_rollout_process_is_told_and_waited_for_no_longer() -> None:
    steps, child = started()
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="the rollout process died with exit code -9"):
        for _ in steps:
            pass


def test_a_trainer_that_stops_leaves_no_process_behind() -> None:
    steps, child = started()
    steps.close()  # type: ignore[attr-defined]
    assert not child.is_running()


def test_a_rollout_process_that_finishes_nothing_is_a_timeout() -> None:
    steps = two.train(model(), tiny_tokenizer(), runs.questions(), rewards.one, args(patience=0.0))
    with pytest.raises(TimeoutError, match="has finished no group in 0 s"):
        next(steps)


# ----------------------------------------------------------------------------------------------------------------------- the page


def test_it_can_be_read_in_one_sitting_and_needs_torch_transformers_and_the_page_before_it() -> None:
    assert examples.lines("two_processes") < 300
    assert examples.needs("two_processes") == {"one_process", "torch", "transformers"}
