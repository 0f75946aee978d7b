"""``bench rollout``: the embedded engine against ``transformers.generate``, in tokens per CPU-second.

512 requests, prompts of 8 to 24 tokens, responses of a forced length uniform in 4..64, 64 at a time, temperature 1, log-prob of
every sampled token on both sides. ``generate`` runs each batch of 64 to its longest row; what it samples after a row's end does
not count. Both sides deliver the same number of tokens, so the ratio is that of their CPU times. Rounds are interleaved.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from trimtab import keyed
from trimtab.bench.models import FIRST, PAD, VOCABULARY, bench_policy
from trimtab.bench.rows import BenchRow, spread
from trimtab.engines.checkpoint import Policy
from trimtab.engines.options import TorchEngineOptions
from trimtab.engines.protocol import Request
from trimtab.engines.torch_engine import TorchEngine
from trimtab.records import Sampling

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM

REQUESTS, SLOTS, MEMBERS = 512, 64, 8


def run(rounds: int = 5) -> list[BenchRow]:
    """Rows ``torch/512`` (ratio: CPU-seconds of generate / ours) and ``generate/512``."""
    policy, requests = bench_policy("0.1M", 128), _requests()
    sides: dict[str, Callable[[], None]] = {
        "torch": lambda: _engine(policy, requests),
        "generate": lambda: _generate(policy.model, requests),
    }
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    wall: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(rounds + 1):
        for name, side in sides.items():
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            side()
            if round_:  # the first round warms up
                cpu[name].append(time.process_time() - cpu_start)
                wall[name].append(time.perf_counter() - wall_start)
    ratios = [theirs / ours for theirs, ours in zip(cpu["generate"], cpu["torch"], strict=True)]
    return [
        BenchRow(
            case=f"{name}/{REQUESTS}",
            cpu_s=statistics.median(cpu[name]),
            wall_s=statistics.median(wall[name]),
            ratio=statistics.median(ratios) if name == "torch" else 1.0,
            spread=spread(ratios) if name == "torch" else 0.0,
        )
        for name in sides
    ]


def _requests() -> list[Request]:
    draw = np.random.default_rng(0)
    prompts = [draw.integers(FIRST, VOCABULARY, draw.integers(8, 25)).astype(np.int32) for _ in range(REQUESTS // MEMBERS)]
    return [
        Request(
            id=i,
            prompt=prompts[i // MEMBERS],
            max_new_tokens=int(draw.integers(4, 65)),
            sampling=Sampling(),
            key=keyed.stream(0, 0, i, 0, 0),
        )
        for i in range(REQUESTS)
    ]


def _engine(policy: Policy, requests: list[Request]) -> None:
    engine = TorchEngine(policy, TorchEngineOptions(slots=SLOTS))
    for request in requests:
        engine.submit(request)
    lengths: dict[int, int] = {}
    while len(lengths) < len(requests):
        lengths.update((done.id, len(done.logp)) for done in engine.step())
    _check(lengths, requests)


@torch.inference_mode()
def _generate(model: Qwen2ForCausalLM, requests: list[Request]) -> None:
    from transformers import GenerationConfig

    lengths: dict[int, int] = {}
    for at in range(0, len(requests), SLOTS):
        batch = requests[at : at + SLOTS]
        width = max(len(r.prompt) for r in batch)
        ids = torch.full((len(batch), width), PAD)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(batch):
            ids[row, width - len(request.prompt) :] = torch.from_numpy(request.prompt)
            mask[row, width - len(request.prompt) :] = 1
        settings = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max(r.max_new_tokens for r in batch),
            pad_token_id=PAD,
            output_scores=True,
            return_dict_in_generate=True,
        )
        out = model.generate(ids, attention_mask=mask, generation_config=settings)
        # log_softmax of every step's scores, gathered at the sampled tokens
        logp = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)  # type: ignore[misc]
        lengths.update((r.id, int(logp[row, : r.max_new_tokens].isfinite().sum())) for row, r in enumerate(batch))
    _check(lengths, requests)


def _check(lengths: dict[int, int], requests: list[Request]) -> None:
    if lengths != {r.id: r.max_new_tokens for r in requests}:
        raise AssertionError("a side of the benchmark did not deliver every token it was asked for")
