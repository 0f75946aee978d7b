"""What per-rollout gradient norms cost: the OPOB update divided by an ordinary update on the same packed batch.

Both sides run the same packed forward, head and AdamW; the plain side forms the same loss with a group-mean baseline and runs one
``backward`` without hooks. Rounds are interleaved, so that what else the machine does hits all sides; only CPU time counts.
Every group has mixed rewards, so no gradient is skipped. Ratios are taken round by round and reported as median and spread.

Cases are ``ROUTE/SIZE/TOKENS``, with ``~TOKENS`` where lengths vary by half around that mean. ``best`` is the exact route with the
lowest median; ``sketch`` and ``last_layer`` estimate norms at the top of the network; ``padded`` is the ordinary update of the padded
transformers model (its own attention, logits and log-softmax over all positions), relative to ours.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from trimtab import functional as F
from trimtab.bench.rows import BenchRow, spread
from trimtab.control.points import NormEstimator
from trimtab.learner.norms.estimate import Route
from trimtab.learner.packing import Packed, pack
from trimtab.learner.passes import PackedModel
from trimtab.records import Outcome, Rollout, Sampling, Segment, StopReason

PROMPT, GROUP, VOCAB = 17, 8, 17
ESTIMATORS: tuple[NormEstimator, ...] = ("sketch", "last_layer")


@dataclass(frozen=True, slots=True)
class Size:
    """A model and a batch: ``tokens`` model inputs a rollout, or that many on average."""

    name: str
    hidden: int
    layers: int
    tokens: int
    rollouts: int
    ragged: bool = False

    def case(self, side: str) -> str:
        return f"{side}/{self.name}/{'~' if self.ragged else ''}{self.tokens}"


SIZES = (
    Size("0.1M", 64, 2, 41, 64),
    Size("0.1M", 64, 2, 41, 64, ragged=True),
    Size("3M", 256, 4, 41, 64),
    Size("0.6M", 128, 3, 256, 16),
)


@dataclass
class UpdateSide:
    """One way to make the update, with a model and optimizer of its own so that all sides see the same weights."""

    update: Callable[[], None]
    cpu: list[float]
    wall: list[float]


def run(rounds: int = 15, sizes: Sequence[Size] = SIZES) -> list[BenchRow]:
    """One row a route and size, ``best`` and ``padded`` included; ``rounds`` interleaved rounds on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [row for size in sizes for row in _measure(size, rounds)]
    finally:
        torch.set_num_threads(threads)


def _measure(size: Size, rounds: int) -> list[BenchRow]:
    rollouts, reward_R = batch_of(size)
    packed = pack(rollouts)
    updates = {"plain": _plain(size, packed, reward_R), "padded": _padded(size, packed, reward_R)}
    updates |= {route: _opob(packed, reward_R, PackedModel(model_of(size), route=route)) for route in get_args(Route)}
    updates |= {name: _opob(packed, reward_R, PackedModel(model_of(size), estimator=name)) for name in ESTIMATORS}
    sides = {name: UpdateSide(update, [], []) for name, update in updates.items()}
    for i in range(rounds + 2):  # the first two warm caches and buffers
        for side in sides.values():
            wall, cpu = time.perf_counter(), time.process_time()
            side.update()
            if i >= 2:
                side.cpu.append(time.process_time() - cpu)
                side.wall.append(time.perf_counter() - wall)
    rows = []
    for name, side in sides.items():
        ratios = [a / b for a, b in zip(side.cpu, sides["plain"].cpu, strict=True)]
        rows.append(
            BenchRow(
                case=size.case(name),
                cpu_s=statistics.median(side.cpu),
                wall_s=statistics.median(side.wall),
                ratio=statistics.median(ratios),
                spread=spread(ratios),
            )
        )
    routes = [r for r in rows if r.case.split("/")[0] in get_args(Route)]
    best = min(routes, key=lambda r: r.ratio)
    return [BenchRow(case=size.case("best"), cpu_s=best.cpu_s, wall_s=best.wall_s, ratio=best.ratio, spread=best.spread), *rows]


def model_of(size: Size) -> PreTrainedModel:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCAB,
            hidden_size=size.hidden,
            intermediate_size=3 * size.hidden,
            num_hidden_layers=size.layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            tie_word_embeddings=False,
        )
    )


def batch_of(size: Size) -> tuple[list[Rollout], Tensor]:
    """Rollouts of one token more than the model reads, and rewards that are mixed within every group."""
    rng = np.random.default_rng(0)
    lengths = np.full(size.rollouts, size.tokens)
    if size.ragged:
        lengths = rng.integers(size.tokens - size.tokens // 2, size.tokens + size.tokens // 2, size.rollouts, endpoint=True)
    rollouts = []
    for i, n in enumerate(lengths + 1):
        mask = np.arange(n) >= PROMPT
        segment = Segment(
            tokens=rng.integers(0, VOCAB, n).astype(np.int32),
            action_mask=mask,
            behavior_logp=np.where(mask, -np.log(VOCAB), 0).astype(np.float32),
            versions=np.where(mask, 0, -1).astype(np.int32),
            turn=np.zeros(n, np.int16),
            sampling=Sampling(),
        )
        correct = i % GROUP % 3 == 0
        rollouts.append(
            Rollout(
                member=i % GROUP,
                segments=(segment,),
                score=float(correct),
                outcome=Outcome.CORRECT if correct else Outcome.WRONG,
                stop=StopReason.EOS,
            )
        )
    return rollouts, torch.tensor([r.score for r in rollouts], dtype=torch.float64)


def _optimizer(model: PreTrainedModel) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.1, fused=True)


class _Credit:
    """The loss both sides form: sequence TIS (c = 8), mean over rollouts of means over tokens, reward over the group's std."""

    def __init__(self, packed: Packed, reward_R: Tensor) -> None:
        self.packed, self.reward_R = packed, reward_R
        self.group_R = torch.arange(reward_R.shape[0]) // GROUP
        self.groups = int(self.group_R[-1]) + 1
        self.scale_R = F.advantages.reward_scale(reward_R, self.group_R, self.groups)

    def log_ratio_R(self, current_N: Tensor) -> Tensor:
        log_ratio_N = (current_N - self.packed.behavior_N).double()
        return log_ratio_N.new_zeros(self.reward_R.shape[0]).index_add(0, self.packed.rollout_N, log_ratio_N)

    def before_credit(self, log_ratio_R: Tensor) -> Tensor:
        """The rollout's coefficient at advantage 1."""
        return -F.weights.truncate(log_ratio_R, 8.0).exp() / (self.packed.length_R * self.reward_R.shape[0])


def _plain(size: Size, packed: Packed, reward_R: Tensor) -> Callable[[], None]:
    model = model_of(size)
    optimizer, runner, credit = _optimizer(model), PackedModel(model), _Credit(packed, reward_R)

    def update() -> None:
        p = runner.forward(packed)
        advantage_R = F.advantages.grpo(reward_R, credit.group_R, credit.groups)
        c_R = credit.before_credit(credit.log_ratio_R(p.current_N)) * advantage_R
        p.backward(c_R[packed.rollout_N])
        optimizer.step()
        optimizer.zero_grad()

    return update


def _opob(packed: Packed, reward_R: Tensor, runner: PackedModel) -> Callable[[], None]:
    optimizer, credit = _optimizer(runner.model), _Credit(packed, reward_R)
    one_N = torch.ones_like(packed.behavior_N)

    def update() -> None:
        p = runner.forward(packed, norms=True)
        log_ratio_R = credit.log_ratio_R(p.current_N)
        pre_R = credit.before_credit(log_ratio_R)
        norm2_R = p.norms(one_N, pre_R, reward_R, credit.group_R)
        log_weight_R = F.baselines.opob_log_weight("paper", log_ratio_R, log_ratio_R, norm2_R)
        baseline_G = F.baselines.optimal_baseline(reward_R, log_weight_R, credit.group_R, credit.groups).baseline_G
        p.finish(pre_R * (reward_R - baseline_G[credit.group_R]) * credit.scale_R)
        optimizer.step()
        optimizer.zero_grad()

    return update


def _padded(size: Size, packed: Packed, reward_R: Tensor) -> Callable[[], None]:
    model = model_of(size)
    optimizer, credit = _optimizer(model), _Credit(packed, reward_R)
    segments = [r.segments[0] for r in packed.rollouts]
    shape = len(segments), max(len(s.tokens) for s in segments)
    ids, attend, actions = (
        torch.zeros(shape, dtype=torch.int64),
        torch.zeros(shape, dtype=torch.int64),
        torch.zeros(shape, dtype=torch.bool),
    )
    for i, s in enumerate(segments):
        ids[i, : len(s.tokens)] = torch.from_numpy(s.tokens.astype(np.int64))
        attend[i, : len(s.tokens)] = 1
        actions[i, : len(s.tokens)] = torch.from_numpy(s.action_mask)
    actions = actions[:, 1:]

    def update() -> None:
        logits = model(input_ids=ids, attention_mask=attend).logits[:, :-1]
        current_N = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[..., 0][actions]
        advantage_R = F.advantages.grpo(reward_R, credit.group_R, credit.groups)
        c_R = credit.before_credit(credit.log_ratio_R(current_N.detach())) * advantage_R
        (current_N * c_R[packed.rollout_N]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return update
