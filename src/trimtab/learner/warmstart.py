"""The quickstart's initial policy: supervised on competent but sloppy demonstrations of chained sums.

A demonstration of ``4+7-1+...=`` is its running totals, ``11,10,...``; each total goes wrong by 1 to 3 with probability q and the
error is carried on. A long phase with small q makes the policy competent, a short one with larger q makes it sloppy, so that it
samples a right answer some of the time and knows how: what reinforcement learning needs. (A policy that is merely under-trained
samples as many right answers and learns nothing from them.) Every phase starts a fresh AdamW and its own stream of prompts.

Cross-entropy is the learner's own machinery with a constant coefficient: d_N = -1 / tokens on every demonstrated token.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from trimtab.engines.checkpoint import Policy, save_policy
from trimtab.learner.packing import pack
from trimtab.learner.passes import PackedModel
from trimtab.records import Outcome, Rollout, Sampling, Segment, StopReason

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<bos>", "<eos>")
CHARACTERS = "0123456789+-=,"
TERMS = 8
LARGEST_ERROR = 3
LR_WARMUP = 50
SAY_EVERY = 500


class Phase(BaseModel):
    """``steps`` batches of ``demonstrations`` whose totals go wrong with probability ``q``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int
    q: float
    lr: float
    demonstrations: int
    decay: bool  # linearly to a tenth, else constant


class WarmstartOptions(BaseModel):
    """Everything that determines the result. The defaults made the model that ships."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = 0
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    intermediate: int = 160
    initializer_range: float = 0.1
    phases: tuple[Phase, ...] = Field(
        default=(
            Phase(steps=6000, q=0.02, lr=3e-3, demonstrations=64, decay=True),
            Phase(steps=2500, q=0.01, lr=2e-3, demonstrations=64, decay=True),
            Phase(steps=2500, q=0.005, lr=1e-3, demonstrations=64, decay=True),
            Phase(steps=3000, q=0.002, lr=1e-3, demonstrations=64, decay=True),
            Phase(steps=60, q=0.25, lr=5e-4, demonstrations=128, decay=False),
        )
    )


def make(options: WarmstartOptions, out: Path) -> Iterator[str]:
    """Train and save to ``out``; yields a line of progress now and then."""
    policy = initial_policy(options)
    model = PackedModel(policy.model)
    for number, phase in enumerate(options.phases):
        optimizer = torch.optim.AdamW(model.parameters(), lr=phase.lr, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
        rng = random.Random(7_000_000 + options.seed + 1000 * number)
        for step in range(phase.steps):
            for group in optimizer.param_groups:
                group["lr"] = phase.lr * min(1.0, (step + 1) / LR_WARMUP) * (1.0 - 0.9 * step / phase.steps if phase.decay else 1.0)
            loss = _step(model, optimizer, [demonstration(rng, phase.q) for _ in range(phase.demonstrations)])
            if (step + 1) % SAY_EVERY == 0 or step + 1 == phase.steps:
                yield f"phase {number + 1} of {len(options.phases)}, step {step + 1} of {phase.steps}: loss {loss:.4f} a token"
    save_policy(policy.model, policy.tokenizer, out)
    yield f"saved {out}; its accuracy: trimtab eval quickstart --model {out}"


def initial_policy(options: WarmstartOptions) -> Policy:
    """The untrained model with its character-level tokenizer."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(SPECIAL) + len(CHARACTERS),
        hidden_size=options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.heads,
        intermediate_size=options.intermediate,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        initializer_range=options.initializer_range,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        return Policy.of(Qwen2ForCausalLM(config), character_tokenizer())


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character; ids 0, 1, 2 are <pad>, <bos>, <eos>."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[0]))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token=SPECIAL[0], pad_token=SPECIAL[0], bos_token=SPECIAL[1], eos_token=SPECIAL[2]
    )


def demonstration(rng: random.Random, q: float) -> tuple[str, str]:
    """(prompt, response) with the distribution of reasoning-gym's ``chain_sum`` of 8 one-digit terms."""
    terms = [rng.randint(0, 9) for _ in range(TERMS)]
    operators = [rng.choice("+-") for _ in range(TERMS - 1)]
    prompt, total, totals = str(terms[0]), terms[0], []
    for operator, term in zip(operators, terms[1:], strict=True):
        prompt += f"{operator}{term}"
        total += term if operator == "+" else -term
        if rng.random() < q:
            total += rng.choice([e for e in range(-LARGEST_ERROR, LARGEST_ERROR + 1) if e])
        totals.append(str(total))
    return f"{prompt}=", ",".join(totals)


def _step(model: PackedModel, optimizer: torch.optim.Optimizer, demonstrations: list[tuple[str, str]]) -> float:
    packed = pack([_rollout(prompt, response) for prompt, response in demonstrations])
    n = packed.targets_N.shape[0]
    optimizer.zero_grad()
    p = model.forward(packed)
    p.backward(torch.full((n,), -1.0 / n))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return -float(p.current_N.mean())


def _rollout(prompt: str, response: str) -> Rollout:
    offset = len(SPECIAL)
    ids = [1, *(offset + CHARACTERS.index(c) for c in prompt + response), 2]
    tokens = np.array(ids, dtype=np.int32)
    mask = np.arange(len(ids)) > len(prompt)
    zeros = np.zeros(len(ids), np.float32)
    versions = np.where(mask, 0, -1).astype(np.int32)
    segment = Segment(
        tokens=tokens, action_mask=mask, behavior_logp=zeros, versions=versions, turn=zeros.astype(np.int16), sampling=Sampling()
    )
    return Rollout(member=0, segments=(segment,), score=0.0, outcome=Outcome.WRONG, stop=StopReason.EOS)
