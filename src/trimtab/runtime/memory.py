"""What a run will hold in memory, device by device, and whether that fits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import psutil
import torch

from trimtab.config.run import LocalOptions, RunConfig
from trimtab.engines.checkpoint import Policy
from trimtab.engines.options import TorchEngineOptions

BYTES = {"float32": 4, "bfloat16": 2, "float64": 8}
PROCESS = 350 * 2**20  # what a process of ours takes before it holds a model: interpreter, torch, transformers


@dataclass(slots=True)
class Needs:
    """Bytes by what they are for, on one device; ``total`` and ``free`` as it stands without this process's own model."""

    device: str
    parts: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, count: float) -> None:
        self.parts[name] = self.parts.get(name, 0.0) + count

    @property
    def needed(self) -> float:
        return sum(self.parts.values())


def needs(config: RunConfig, policy: Policy, longest: int, activations: float) -> Mapping[str, Needs]:
    """By device. ``longest``: tokens of prompt and response that can occur; ``activations``: of one micro-batch of the learner."""
    n = sum(p.numel() for p in policy.model.parameters())
    dtype = config.learner.dtype
    devices: dict[str, Needs] = {}

    def on(device: str) -> Needs:
        return devices.setdefault(device, Needs(device))

    learner = on(config.learner.device)
    narrow = dtype == "bfloat16"  # then with a float32 master, its gradient and its moments
    per_weight = 2 * BYTES["bfloat16"] + 4 * BYTES["float32"] if narrow else 4 * BYTES[dtype]
    what = "weights, gradient, float32 masters with gradient and AdamW moments" if narrow else "weights, gradient, AdamW moments"
    learner.add(f"learner ({what})", n * per_weight)
    learner.add("activations of a micro-batch", activations)
    local = isinstance(config.runtime, LocalOptions)
    samplers = config.runtime.workers if isinstance(config.runtime, LocalOptions) else 0
    samplers += 1  # the learner's process evaluates with an engine of its own; lockstep samples with it
    if isinstance(config.engine, TorchEngineOptions):
        engine = on(config.engine.device)
        engine.add(f"{samplers} engines: served and staged weights", samplers * 2 * n * BYTES[config.engine.dtype])
        cached = f"{samplers} engines: keys and values of {longest} tokens in {config.engine.slots} slots"
        engine.add(cached, samplers * keys(config, policy, longest))
    if local:
        on("cpu").add("shared memory (two blocks of weights)", 2 * n * BYTES[dtype])
    on("cpu").add("processes", PROCESS * (1 + (samplers - 1 if local else 0) + 1))
    return devices


def keys(config: RunConfig, policy: Policy, longest: int) -> float:
    """Bytes of the keys and values of one engine whose every slot holds ``longest`` tokens: the cache grows to a power of two."""
    assert isinstance(config.engine, TorchEngineOptions)
    c = policy.model.config
    width = (c.num_key_value_heads or c.num_attention_heads) * (c.hidden_size // c.num_attention_heads)
    capacity = 2 ** math.ceil(math.log2(max(longest, 64)))
    return 2.0 * c.num_hidden_layers * width * BYTES[config.engine.dtype] * capacity * config.engine.slots


def machine(device: str) -> tuple[float, float]:
    """(free, total) bytes of a device. What this process holds itself counts as free: the run will hold it in its place."""
    if device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device), total
    memory = psutil.virtual_memory()
    return memory.available + psutil.Process().memory_info().rss, memory.total


def told(devices: Mapping[str, Needs]) -> Iterator[str]:
    """Lines for a person: what is needed for what, and whether it fits."""
    for i, found in enumerate(devices.values()):
        head = "memory:" if i == 0 else "       "
        for j, (name, count) in enumerate(sorted(found.parts.items(), key=lambda part: -part[1])):
            yield f"{head if j == 0 else '       '} {found.device}: {name} {size(count)}"
        free, total = machine(found.device)
        if found.needed <= free:
            yield f"        {found.device}: {size(found.needed)} of {size(free)} free ({size(total)} in all): fits"
        else:
            most = max(found.parts, key=lambda name: found.parts[name])
            yield (
                f"        {found.device}: does not fit, because {size(found.needed)} are needed and {size(free)} are free "
                f"({size(total)} in all); the most is {most}: {_remedy(most)}"
            )


def _remedy(name: str) -> str:
    if "keys and values" in name:
        return "lower engine.slots or rollout.max_new_tokens"
    if "activations" in name:
        return "set learner.micro_tokens, or lower it"
    return "take a smaller model, or dtype bfloat16 on a device that computes in it"


def size(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
