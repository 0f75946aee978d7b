"""Tiny random Qwen2 models with a character-level tokenizer: real transformers objects, built in milliseconds, the same every time."""

from __future__ import annotations

import copy
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trimtab.engines.checkpoint import Policy, save_policy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

CHARS = "0123456789+-=,"
PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
TURN = "<|im_end|>"
BYTE_TEXTS = ("<answer>12</answer>\n", "so </answer> a</b> naïve 数字</答>", "x</answer>.\n\nQuestion: one", "</ans", "wer>\n")


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character of ``0-9+-=,``; ids 0, 1, 2 are <pad>, <bos>, <eos>. ``encode`` adds no special token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([PAD, BOS, EOS, *CHARS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=PAD, bos_token=BOS, eos_token=EOS)


def tiny_policy(
    tied: bool = False,
    *,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 64,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    context: int = 256,
    sharpness: float = 4.0,
    padding: int = 0,
) -> Policy:
    """A random Qwen2 model with its tokenizer, deterministic in ``seed``.

    ``sharpness`` scales the head, so that the sampling distribution is far from uniform and a mistake changes tokens.
    ``padding``: rows of the vocabulary beyond the tokenizer's. They are what the model would say most often, if it could.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = tiny_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer) + padding,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                spread = 0.1 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
                centre = 1.0 if "norm" in name else 0.0
                parameter.copy_(centre + spread * torch.randn(parameter.shape))
            model.lm_head.weight.mul_(sharpness)
            model.lm_head.weight[len(tokenizer) :].mul_(2.0)
    return Policy.of(model.to(dtype).eval(), tokenizer)


def sliced(model: Qwen2ForCausalLM, rows: int) -> Qwen2ForCausalLM:
    """A copy of the model with the first ``rows`` of its vocabulary only."""
    out = copy.deepcopy(model)
    embedding, head = out.model.embed_tokens, out.lm_head
    tied = head.weight is embedding.weight
    embedding.weight = torch.nn.Parameter(embedding.weight.detach()[:rows].clone())
    head.weight = embedding.weight if tied else torch.nn.Parameter(head.weight.detach()[:rows].clone())
    embedding.num_embeddings = head.out_features = out.config.vocab_size = rows
    return out


def tiny_folder(path: Path, tied: bool = False, **settings: int) -> Path:
    """Save :func:`tiny_policy` as an ordinary Hugging Face folder at ``path``; returns ``path``."""
    policy = tiny_policy(tied, **settings)
    save_policy(policy.model, policy.tokenizer, path)
    return path


@lru_cache
def bytes_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of some 330 tokens: some begin, hold or end ``</answer>``. Ids 0 and 1 are <eos> and TURN."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=[EOS, TURN], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(BYTE_TEXTS * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=EOS, additional_special_tokens=[TURN])
