"""How fast this machine samples and learns, from a few decode steps and one micro-batch; both are scaled to a batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab import keyed
from trimtab.config.run import LocalOptions, RunConfig
from trimtab.engines.protocol import Completion, Request
from trimtab.records import I32, Batch, Group, Outcome, Slot, TrimtabError
from trimtab.rollout import assemble
from trimtab.runtime.build import Parts
from trimtab.tasks.protocol import Verdict

STEPS = 24  # decode steps that are sampled
WARM = 4  # of them, the first, which hold the prompts and whatever is set up once
AGAIN_S = 5.0  # a learning step faster than this is measured a second time, without what is set up once
ROWS = 512  # prompts whose length is looked at, spread over the data


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds a batch, were every response ``max_new_tokens`` long; ``activations``: bytes a token that awaits its backward."""

    generate: float
    learn: float
    activations: float
    rows: int  # decoded together while it was measured
    tokens: int  # learned from while it was measured


def longest_prompt(parts: Parts) -> tuple[int, int]:
    """(tokens of the longest prompt, prompts looked at): all of them, or ``ROWS`` spread over the data."""
    task = parts.sampler.task
    step = max(1, len(task) // ROWS)
    found = []
    for row in range(0, len(task), step):
        try:
            found.append(len(parts.sampler.renderer.ids(task.prompt(row))))
        except TrimtabError:  # set aside when its turn comes
            continue
    return max(found, default=1), len(found)


def measure(config: RunConfig, parts: Parts, longest: int) -> Speed:
    """Sample ``STEPS`` tokens of as many rows as decode together, then learn from one micro-batch of them."""
    r = config.rollout
    rows = min(config.engine.slots, r.prompts_per_batch * r.group_size)
    groups = max(1, rows // r.group_size)
    prompts = _prompts(parts, groups)
    completions, prompt_s, step_s = _sample(config, parts, prompts, rows)
    share = r.prompts_per_batch * r.group_size / rows
    generate = share * (prompt_s + step_s * r.max_new_tokens)
    batch = _batch(prompts, completions, config)
    budget = config.learner.micro_tokens
    whole = r.prompts_per_batch * r.group_size * (longest + r.max_new_tokens)
    micro = _within(batch, min(budget or whole, whole))
    seconds, held, tokens = _learn(parts, micro)
    return Speed(generate, seconds / tokens * whole * config.learner.epochs, held / tokens, rows, tokens)


def _prompts(parts: Parts, count: int) -> list[I32]:
    found: list[I32] = []
    for row in range(len(parts.sampler.task)):
        if len(found) == count:
            break
        try:
            found.append(parts.sampler.renderer.ids(parts.sampler.task.prompt(row)))
        except TrimtabError:
            continue
    return found


def _sample(config: RunConfig, parts: Parts, prompts: list[I32], rows: int) -> tuple[dict[int, Completion], float, float]:
    """(completions, seconds for the prompts, seconds a decode step)."""
    engine, r = parts.sampler.engine, config.rollout
    tokens = min(STEPS, r.max_new_tokens)
    for i in range(rows):
        key = keyed.fold(keyed.ROLLOUT, config.seed, 0, i)
        prompt = prompts[(i // r.group_size) % len(prompts)]
        engine.submit(Request(id=i, prompt=prompt, max_new_tokens=tokens, sampling=r.sampling, key=int(key)))
    done: dict[int, Completion] = {}
    times = []
    while len(done) < rows:
        begun = time.perf_counter()
        done |= {c.id: c for c in engine.step()}
        times.append(time.perf_counter() - begun)
    steady = sorted(times[WARM:] or times[-1:])
    step_s = steady[len(steady) // 2]
    return done, max(0.0, times[0] - step_s), step_s


def _batch(prompts: list[I32], completions: dict[int, Completion], config: RunConfig) -> Batch:
    """What was sampled, with rewards that differ within every group, so that all of it is learned from."""
    r, groups = config.rollout, []
    for g, prompt in enumerate(prompts):
        members = []
        for m in range(r.group_size):
            completion = completions.get(g * r.group_size + m)
            if completion is not None:
                part = assemble.segment(prompt, completion, r.sampling)
                verdict = Verdict(score=float(m % 2), outcome=Outcome.WRONG)
                members.append(assemble.rollout(m, part, completion, verdict, 0.0))
        if members:
            groups.append(
                Group(slot=Slot(0, g), prompt=g, attempt=0, seed=config.seed, task="forecast", source="forecast", rollouts=tuple(members))
            )
    return Batch(number=0, version=0, groups=tuple(groups))


def _within(batch: Batch, tokens: int) -> Batch:
    """Its first groups, as long as they pass through the model together; at least one."""
    kept: list[Group] = []
    used = 0
    for group in batch.groups:
        size = sum(len(s.tokens) for r in group.rollouts for s in r.segments)
        if kept and used + size > tokens:
            break
        kept.append(group)
        used += size
    return Batch(number=0, version=0, groups=tuple(kept))


def _learn(parts: Parts, batch: Batch) -> tuple[float, float, int]:
    """(seconds, bytes that awaited the backward, tokens) of one update."""
    tokens = sum(len(s.tokens) for r in batch.rollouts for s in r.segments)
    with _saved() as held:
        begun = time.perf_counter()
        parts.learner.train(batch)
        seconds = time.perf_counter() - begun
    if seconds < AGAIN_S:
        begun = time.perf_counter()
        parts.learner.train(batch)
        seconds = time.perf_counter() - begun
    return seconds, float(sum(held.values())), tokens


@contextmanager
def _saved() -> Iterator[dict[int, int]]:
    """Bytes of every storage that autograd keeps meanwhile, by its address; parameters are kept anyway and come out once, too."""
    held: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        if not isinstance(x, torch.nn.Parameter):
            held[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        yield held


def ceiling(config: RunConfig, speed: Speed) -> Iterator[str]:
    """Lines for a person."""
    r = config.rollout
    whole = r.prompts_per_batch * r.group_size * r.max_new_tokens
    g, t = speed.generate, speed.learn
    workers = config.runtime.workers if isinstance(config.runtime, LocalOptions) else 1
    side = "sampling" if g / workers > t else "learning"
    rates = f"{whole / g:,.0f} tokens/s sampled ({speed.rows} rows together), {whole / t:,.0f} tokens/s learned from"
    yield f"speed: {rates} (measured here, alone)"
    yield f"       a batch of {whole:,} new tokens at the most: generation {g:.3g} s, learning {t:.3g} s; {side} is the bottleneck"
    yield f"       asynchronous ceiling (g + t) / max(g / workers, t) = {(g + t) / max(g / workers, t):.2f}x the synchronous run"
    seconds = config.learner.batches * max(g / workers, t)
    yield f"       {config.learner.batches} batches take at most about {_duration(seconds)} if every response is that long"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
