"""Synchronous RL in one loop: sample with the newest weights, score, step, again.

The oracle of invariant 1. It shares the engine, the packed forward and the mathematics with the library, and nothing of the pool,
the rollout worker, publication, the runtimes or the chain of methods. Every batch is whole groups of one policy's rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trimtab import functional as F
from trimtab import keyed
from trimtab.engines.checkpoint import Policy, load_policy
from trimtab.engines.options import TorchEngineOptions
from trimtab.engines.protocol import Request
from trimtab.engines.torch_engine import TorchEngine
from trimtab.learner.packing import pack
from trimtab.learner.passes import PackedModel
from trimtab.records import Outcome, Rollout, Sampling, Segment, StopReason

CAP, MAX_NORM, SEED = 8.0, 1.0, 0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a batch, of a response, of a step."""

    groups: int
    members: int
    new_tokens: int
    lr: float


def sync_loop(folder: Path, prompts: Sequence[str], reward: Callable[[str], float], vcpo: bool, n: Sizes) -> Iterator[dict[str, Tensor]]:
    """The weights after each batch, for ever. ``vcpo``: OPOB and ESS step scaling, otherwise GRPO; both with sequence-TIS."""
    policy = load_policy(folder)
    engine = TorchEngine(policy, TorchEngineOptions())
    model = PackedModel(policy.model)
    adamw = torch.optim.AdamW(model.parameters(), lr=n.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, fused=True)
    drawn = version = 0
    while True:
        slots = [divmod(i, len(prompts)) for i in range(drawn, drawn + n.groups)]
        drawn += n.groups
        rollouts = sample(engine, policy, prompts, reward, slots, n)
        if step_size := gradient(model, rollouts, n, vcpo):
            adamw.param_groups[0]["lr"] = n.lr * step_size
            adamw.step()
            version += 1
        adamw.zero_grad()
        weights = {name: p.detach() for name, p in policy.model.named_parameters()}
        engine.stage(version, 0, weights)
        engine.commit(version)
        yield weights


def sample(
    engine: TorchEngine, policy: Policy, prompts: Sequence[str], reward: Callable[[str], float], slots: Sequence[tuple[int, int]], n: Sizes
) -> list[Rollout]:
    """The rollouts of each slot's prompt, in order."""
    m = n.members
    prompt_ids = []
    for epoch, index in slots:
        text = prompts[keyed.permutation(SEED, epoch, len(prompts))[index]]
        prompt_ids.append(np.array([policy.tokenizer.bos_token_id, *policy.tokenizer.encode(text, add_special_tokens=False)], np.int32))
        for member in range(m):
            key, i = keyed.stream(SEED, epoch, index, 0, member), (len(prompt_ids) - 1) * m + member
            ask = Request(id=i, prompt=prompt_ids[-1], max_new_tokens=n.new_tokens, sampling=Sampling(), key=key, stop_ids=policy.eos_ids)
            engine.submit(ask)
    done: dict[int, Rollout] = {}
    while len(done) < len(slots) * m:
        for c in engine.step():
            prompt = prompt_ids[c.id // m]
            off = np.zeros(len(prompt))
            segment = Segment(
                tokens=np.concatenate([prompt, c.tokens]),
                action_mask=np.concatenate([off, c.tokens >= 0]).astype(bool),
                behavior_logp=np.concatenate([off, c.logp]).astype(np.float32),
                versions=np.concatenate([off - 1, c.versions]).astype(np.int32),
                turn=np.zeros(len(prompt) + len(c.tokens), np.int16),
                sampling=Sampling(),
            )
            score = reward(str(policy.tokenizer.decode(c.tokens.tolist(), skip_special_tokens=True)))
            done[c.id] = Rollout(member=c.id % m, segments=(segment,), score=score, outcome=Outcome.WRONG, stop=StopReason.EOS)
    return [done[i] for i in sorted(done)]


def gradient(model: PackedModel, rollouts: list[Rollout], n: Sizes, vcpo: bool) -> float:
    """Leave the clipped gradient in ``.grad``; the factor on the learning rate, 0 where no group has two different rewards."""
    reward_R = torch.tensor([r.score for r in rollouts], dtype=torch.float64)
    group_R, groups = torch.arange(n.groups).repeat_interleave(n.members), n.groups
    mixed_R = F.advantages.reward_scale(reward_R, group_R, groups) > 0
    log_ratio_R = torch.zeros_like(reward_R)
    for live in (True, False):
        part = torch.nonzero(mixed_R == live)[:, 0]
        if not len(part):
            continue
        packed = pack([rollouts[i] for i in part.tolist()])
        forward = model.forward(packed, norms=vcpo) if live else None
        current_N = model.score(packed) if forward is None else forward.current_N
        log_ratio_R[part] = s_R = F.ratios.sequence_sum(current_N - packed.behavior_N, packed.rollout_N, len(part))
        if forward is None:
            continue
        reward, group = reward_R[part], group_R[part]
        weight_N = F.weights.token_weight(F.weights.truncate(s_R, CAP), packed.rollout_N).float()
        scale_N = F.reduce.token_scale(
            "seq_mean_token_mean", packed.length_R, packed.rollout_N, rollouts=len(rollouts), tokens=0, max_length=0
        ).float()
        advantage_R = F.advantages.grpo(reward, group, groups)
        if vcpo:
            pre_R = F.ratios.sequence_sum(weight_N * scale_N, packed.rollout_N, len(part)) / packed.length_R
            norm2_R = forward.norms(torch.ones_like(current_N), pre_R, reward, group)
            log_W = F.baselines.opob_log_weight("paper", s_R, F.weights.truncate(s_R, CAP), norm2_R)
            baseline_G = F.baselines.optimal_baseline(reward, log_W, group, groups).baseline_G
            advantage_R = (reward - baseline_G[group]) * F.advantages.reward_scale(reward, group, groups)
        d_N = -scale_N * (weight_N * advantage_R[packed.rollout_N].float())
        if vcpo:
            forward.finish(F.ratios.sequence_sum(d_N, packed.rollout_N, len(part)) / packed.length_R)
        else:
            forward.backward(d_N)
    if not mixed_R.any():
        return 0.0
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    factor = F.gradients.clip_factor(F.gradients.global_norm(grads), MAX_NORM)
    for grad in grads:
        grad.mul_(factor)
    return F.ess.ess_multiplier(F.ess.ess(log_ratio_R).ratio) if vcpo else 1.0
