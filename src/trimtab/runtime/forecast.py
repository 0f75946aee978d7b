"""What a run will need and how fast it can be, before it starts: ``train --dry-run``."""

from __future__ import annotations

import time
from collections.abc import Iterator

from trimtab.config.run import LocalOptions, RunConfig
from trimtab.control.registry import written
from trimtab.engines.options import TorchEngineOptions
from trimtab.pool.results import Formed, Ticket
from trimtab.rollout.collector import GroupDone
from trimtab.rollout.evaluate import shortfall
from trimtab.runtime.build import Parts, build

ROUNDS = 3  # measured batches; the first of each is warm-up and left out
BYTES = {"float32": 4, "bfloat16": 2, "float64": 8}


def forecast(config: RunConfig) -> Iterator[str]:
    """Lines for a person: the plan, the chain, memory, and the ceiling from a few measured batches."""
    parts = build(config)
    try:
        yield from _plan(config, parts)
        yield from _memory(config, parts)
        yield from _ceiling(config, parts)
    finally:
        parts.sampler.close()


def _plan(config: RunConfig, parts: Parts) -> Iterator[str]:
    r, rows = config.rollout, len(parts.sampler.task)
    slots = config.learner.batches * r.prompts_per_batch
    shape = f"{r.prompts_per_batch} prompts x {r.group_size} rollouts, at most {r.max_new_tokens} new tokens each"
    yield f"plan: {config.learner.batches} batches of {shape}"
    yield f"      {slots} prompt slots over {rows} rows = {slots / rows:.2f} epochs; {slots * r.group_size} rollouts"
    if isinstance(config.runtime, LocalOptions):
        bound = "unbounded" if config.runtime.max_lag is None else str(config.runtime.max_lag)
        yield f"      local: {config.runtime.workers} worker(s), no token older than {bound} versions"
        yield f"      samplers run at most {config.runtime.batches_ahead} batches ahead"
    else:
        yield f"      lockstep: lag {config.runtime.lag}"
    chain = config.chain()
    for i, method in enumerate(chain.methods):
        points, options = "+".join(method.points()), method.options.model_dump()
        yield f"{'chain:' if i == 0 else '      '} {points}: {written(method.name, options)}"
    yield from (f"      note: {said}" for said in chain.said)
    if said := shortfall(config.eval, parts.sampler.task):
        yield f"      note: {said}"


def _memory(config: RunConfig, parts: Parts) -> Iterator[str]:
    n = sum(p.numel() for p in parts.policy.model.parameters())
    narrow = config.learner.dtype == "bfloat16"  # then with a float32 master, its gradient and its moments
    learner = n * (2 * BYTES["bfloat16"] + 4 * BYTES["float32"] if narrow else 4 * BYTES[config.learner.dtype])
    what = "weights, gradient, float32 masters with gradient and AdamW moments" if narrow else "weights, gradient, AdamW moments"
    yield f"memory: {n:,} parameters; learner {_mib(learner)} ({what}) + activations"
    if isinstance(config.engine, TorchEngineOptions):
        c = parts.policy.model.config
        width = (c.num_key_value_heads or c.num_attention_heads) * (c.hidden_size // c.num_attention_heads)
        row = 2 * c.num_hidden_layers * width * BYTES[config.engine.dtype] * (config.engine.max_context or parts.policy.context)
        engine = 2 * n * BYTES[config.engine.dtype]
        yield f"        each sampler {_mib(engine)} (served and staged weights) + up to {_mib(row * config.engine.slots)} keys and values"
    if isinstance(config.runtime, LocalOptions):
        yield f"        shared memory {_mib(2 * n * BYTES[config.learner.dtype])} (two blocks)"


def _mib(count: float) -> str:
    return f"{count / 2**20:,.1f} MiB"


def _ceiling(config: RunConfig, parts: Parts) -> Iterator[str]:
    """g and t from batches generated and trained on, one after the other; the engine keeps its weights."""
    pool, collector = parts.pool, parts.sampler.collector
    generate, train = [], []
    for _ in range(min(ROUNDS, config.learner.batches)):
        begun = time.perf_counter()
        for _ in range(config.rollout.prompts_per_batch):
            ticket = pool.admit("forecast", 0, begun)
            if isinstance(ticket, Ticket):
                collector.assign(ticket.slot, ticket.prompt, ticket.attempt)
        for result in collector.drain(config.runtime.progress_deadline_s if isinstance(config.runtime, LocalOptions) else 600.0):
            if isinstance(result, GroupDone):
                pool.deliver("forecast", result.group)
        formed = pool.form()
        middle = time.perf_counter()
        if not isinstance(formed, Formed):
            yield f"speed: cannot be measured, no whole batch came together ({formed})"
            return
        parts.learner.train(formed.batch)
        pool.consumed(0)
        generate.append(middle - begun)
        train.append(time.perf_counter() - middle)
    g, t = (min(x[1:] or x) for x in (generate, train))
    workers = config.runtime.workers if isinstance(config.runtime, LocalOptions) else 1
    ceiling = (g + t) / max(g / workers, t)
    side = "sampling" if g / workers > t else "learning"
    yield f"speed: generation {g:.3f} s and learning {t:.3f} s a batch (measured here, alone); {side} is the bottleneck"
    yield f"       asynchronous ceiling (g + t) / max(g / workers, t) = {ceiling:.2f}x the synchronous run"
    yield f"       {config.learner.batches} batches take at least {config.learner.batches * max(g / workers, t):.0f} s"
