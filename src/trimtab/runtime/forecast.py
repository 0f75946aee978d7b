"""What a run will need and how fast it can be, before it starts: ``train --dry-run``."""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.config.run import LocalOptions, RunConfig
from trimtab.control.registry import written
from trimtab.rollout.evaluate import shortfall
from trimtab.runtime.build import Parts, build
from trimtab.runtime.memory import needs, told
from trimtab.runtime.speed import ceiling, longest_prompt, measure


def forecast(config: RunConfig) -> Iterator[str]:
    """Lines for a person: the plan, the chain, memory and whether it fits, and the ceiling from one measured micro-batch."""
    parts = build(config)
    try:
        yield from _plan(config, parts)
        prompt, seen = longest_prompt(parts)
        yield f"prompts: the longest of {seen} looked at has {prompt} tokens; {prompt + config.rollout.max_new_tokens} with its response"
        longest = min(prompt + config.rollout.max_new_tokens, parts.policy.context)
        speed = measure(config, parts, longest)
        n = sum(p.numel() for p in parts.policy.model.parameters())
        whole = config.rollout.prompts_per_batch * config.rollout.group_size * longest
        tokens = min(config.learner.micro_tokens or whole, whole)
        yield f"model: {n:,} parameters; a micro-batch has up to {tokens:,} tokens"
        yield from told(needs(config, parts.policy, longest, speed.activations * tokens))
        yield from ceiling(config, speed)
    finally:
        parts.sampler.close()


def _plan(config: RunConfig, parts: Parts) -> Iterator[str]:
    r, rows = config.rollout, len(parts.data.rows)
    slots = config.learner.batches * r.prompts_per_batch
    shape = f"{r.prompts_per_batch} prompts x {r.group_size} rollouts, at most {r.max_new_tokens} new tokens each"
    yield f"plan: {config.learner.batches} batches of {shape}"
    yield f"      {slots} prompt slots over {rows} rows = {slots / rows:.2f} epochs; {slots * r.group_size} rollouts"
    yield from (f"      {line}" for line in parts.data.told)
    yield from (f"      note: {line}" for line in parts.data.notes)
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
