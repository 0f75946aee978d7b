"""Initial policies: supervised on competent but sloppy demonstrations. The defaults make the quickstart's.

Each step of a demonstration goes wrong with probability q. A long phase with small q makes the policy competent, a short one with
larger q makes it sloppy, so that it samples a right answer some of the time and knows how: what reinforcement learning needs. (A
policy that is merely under-trained samples as many right answers and learns nothing from them.) Every phase starts a fresh AdamW
and its own stream of prompts.

Cross-entropy is the learner's own machinery with a constant coefficient: d_N = -1 / tokens on every demonstrated token.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from trimtab.engines.checkpoint import Policy, save_policy
from trimtab.lab.demonstrations import SOURCES, Demonstration
from trimtab.lab.recipe import WarmstartOptions
from trimtab.learner.packing import pack
from trimtab.learner.passes import PackedModel
from trimtab.records import Outcome, Rollout, Sampling, Segment, StopReason

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<bos>", "<eos>")
LR_WARMUP = 50
SAY_EVERY = 500


def make(options: WarmstartOptions, out: Path) -> Iterator[str]:
    """Train and save to ``out``; yields a line of progress now and then."""
    policy = initial_policy(options)
    model = PackedModel(policy.model, ids=policy.vocabulary)
    source = SOURCES[options.task]
    ids = {c: len(SPECIAL) + i for i, c in enumerate(source.characters)}
    for number, phase in enumerate(options.phases):
        optimizer = torch.optim.AdamW(model.parameters(), lr=phase.lr, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
        rng = random.Random(7_000_000 + options.seed + 1000 * number)
        for step in range(phase.steps):
            for group in optimizer.param_groups:
                group["lr"] = phase.lr * min(1.0, (step + 1) / LR_WARMUP) * (1.0 - 0.9 * step / phase.steps if phase.decay else 1.0)
            loss = _step(model, optimizer, [source.draw(rng, phase.q) for _ in range(phase.demonstrations)], ids)
            if (step + 1) % SAY_EVERY == 0 or step + 1 == phase.steps:
                yield f"phase {number + 1} of {len(options.phases)}, step {step + 1} of {phase.steps}: loss {loss:.4f} a token"
    save_policy(policy.model, policy.tokenizer, out)
    yield f"saved {out}" + (f"; its accuracy: trimtab eval quickstart --model {out}" if options.task == "chain_sum" else "")


def initial_policy(options: WarmstartOptions) -> Policy:
    """The untrained model with its character-level tokenizer."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    characters = SOURCES[options.task].characters
    config = Qwen2Config(
        vocab_size=len(SPECIAL) + len(characters),
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
        return Policy.of(Qwen2ForCausalLM(config), character_tokenizer(characters))


def character_tokenizer(characters: str) -> PreTrainedTokenizerFast:
    """One token a character; ids 0, 1, 2 are <pad>, <bos>, <eos>."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *characters])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[0]))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token=SPECIAL[0], pad_token=SPECIAL[0], bos_token=SPECIAL[1], eos_token=SPECIAL[2]
    )


def _step(model: PackedModel, optimizer: torch.optim.Optimizer, demonstrations: list[Demonstration], ids: Mapping[str, int]) -> float:
    packed = pack([_rollout(prompt, response, ids) for prompt, response in demonstrations])
    n = packed.targets_N.shape[0]
    optimizer.zero_grad()
    p = model.forward(packed)
    p.backward(torch.full((n,), -1.0 / n))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return -float(p.current_N.mean())


def _rollout(prompt: str, response: str, ids: Mapping[str, int]) -> Rollout:
    tokens = np.array([1, *(ids[c] for c in prompt + response), 2], dtype=np.int32)
    mask = np.arange(len(tokens)) > len(prompt)
    zeros = np.zeros(len(tokens), np.float32)
    versions = np.where(mask, 0, -1).astype(np.int32)
    segment = Segment(
        tokens=tokens, action_mask=mask, behavior_logp=zeros, versions=versions, turn=zeros.astype(np.int16), sampling=Sampling()
    )
    return Rollout(member=0, segments=(segment,), score=0.0, outcome=Outcome.WRONG, stop=StopReason.EOS)
