"""Random Qwen2 policies of given sizes, for benchmarks: what they cost does not depend on what they know."""

from __future__ import annotations

import torch

from trimtab.engines.checkpoint import Policy
from trimtab.engines.vocabulary import Vocabulary

PAD, BOS, EOS, FIRST, VOCABULARY = 0, 1, 2, 3, 17
SIZES = {"0.1M": (64, 2, 192, 2), "1M": (128, 4, 512, 4)}  # hidden, layers, intermediate, key-value heads


def bench_policy(size: str, context: int = 256) -> Policy:
    """A random model of about that many parameters, with a tokenizer of 17 words; it never ends a response by itself."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    hidden, layers, intermediate, kv_heads = SIZES[size]
    words = {name: i for i, name in enumerate(["<pad>", "<bos>", "<eos>", *map(str, range(FIRST, VOCABULARY))])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, "<pad>")), pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context,
        pad_token_id=PAD,
        bos_token_id=BOS,  # no EOS: lengths are forced
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config).eval()
    ids = Vocabulary(VOCABULARY, VOCABULARY)
    return Policy(model=model, tokenizer=tokenizer, eos_ids=(EOS,), context=context, vocabulary=ids)
