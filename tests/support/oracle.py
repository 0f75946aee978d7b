"""Sampling the slow way: one request alone, no cache, the whole sequence through transformers for every token, sums in Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from trimtab import keyed

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM

    from trimtab.engines.protocol import Request


@torch.no_grad()
def sample_alone(models: Sequence[Qwen2ForCausalLM], request: Request) -> tuple[list[int], list[float]]:
    """Tokens and log-probs of ``request``; token i comes from ``models[i]`` (the last one goes on). Temperature only, no cut."""
    sequence = [int(t) for t in request.prompt]
    tokens: list[int] = []
    logps: list[float] = []
    while len(tokens) < request.max_new_tokens and not (tokens and tokens[-1] in request.stop_ids):
        model = models[min(len(tokens), len(models) - 1)]
        logits = model(torch.tensor([sequence])).logits[0, -1] / request.sampling.temperature
        logp = logits.log_softmax(-1).tolist()
        u = float(keyed.uniform(request.key, request.turn, len(tokens)))
        cdf = list(itertools.accumulate(math.exp(value) for value in logp))
        token = next(v for v, reached in enumerate(cdf) if reached > u * (cdf[-1] * (1 - 2**-52)))
        tokens.append(token)
        logps.append(logp[token])
        sequence.append(token)
    return tokens, logps


@torch.no_grad()
def score_whole(model: Qwen2ForCausalLM, prompt: np.ndarray, response: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Log-probs of ``response`` after ``prompt`` by one full forward of transformers."""
    ids = torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64))[None]
    logp = (model(ids).logits[0] / temperature).log_softmax(-1)
    return logp[len(prompt) - 1 : -1].gather(-1, ids[0, len(prompt) :, None])[:, 0].double().numpy()
