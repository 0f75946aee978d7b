"""Policies on disk: ordinary Hugging Face folders of the Qwen2 family, read from and written to local files only.

Everything that can be seen without reading the weights (folder, configuration, tokenizer, safetensors headers) is checked
before a weight is read, and each bad input is one sentence.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from trimtab.engines.folder import check_code, check_config, check_folder
from trimtab.engines.vocabulary import Vocabulary
from trimtab.records import TrimtabError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A causal language model with its tokenizer.

    ``eos_ids`` end a response; ``context`` is the longest sequence in tokens; ``vocabulary``: the ids that can be sampled.
    """

    model: Qwen2ForCausalLM
    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]
    context: int
    vocabulary: Vocabulary

    @classmethod
    def of(cls, model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> Policy:
        """Read the special tokens off a model and its tokenizer (generation config, config and tokenizer may each name EOS ids)."""
        check_config({**model.config.to_dict(), "architectures": [type(model).__name__]}, "model")
        eos: list[int] = []
        for named in (getattr(model.generation_config, "eos_token_id", None), model.config.eos_token_id, tokenizer.eos_token_id):
            eos += [] if named is None else [named] if isinstance(named, int) else list(named)
        if not eos:
            raise TrimtabError("eos_token_id is named by neither the model nor the tokenizer: set it in config.json, or no response ends")
        return cls(
            model=model,
            tokenizer=tokenizer,
            eos_ids=tuple(dict.fromkeys(eos)),
            context=model.config.max_position_embeddings,
            vocabulary=Vocabulary.of({*tokenizer.get_vocab().values(), *eos}, model.config.vocab_size),
        )


def load_policy(path: str | Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Policy:
    """Load a local Qwen2 folder, tied or untied, in evaluation mode. Never asks a hub.

    Raises ``TrimtabError`` for: a missing folder, a folder without a readable ``config.json``, another architecture, dropout,
    sliding-window attention, no tokenizer files, missing or corrupt safetensors, tensors that are missing, and NaN or inf in a weight.
    """
    folder = Path(path)
    check_folder(folder)
    from transformers import Qwen2ForCausalLM

    _no_bars()
    tokenizer = load_tokenizer(folder)
    try:
        # The stub of from_pretrained does not know that it returns a pair here.
        loaded: object = Qwen2ForCausalLM.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, dtype=dtype, output_loading_info=True
        )
    except RuntimeError as error:  # transformers reports tensors of another shape this way
        raise TrimtabError(
            f"{folder}: the weights do not fit config.json ({str(error).splitlines()[0]}); export the model again"
        ) from error
    model, info = cast("tuple[Qwen2ForCausalLM, dict[str, list[str]]]", loaded)
    if info["missing_keys"]:
        raise TrimtabError(f"{folder}: the weights lack the tensor {min(info['missing_keys'])}; export the model again")
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise TrimtabError(f"{folder}: the tensor {name} holds NaN or inf; use an earlier checkpoint")
    highest = max(tokenizer.get_vocab().values())
    if highest >= model.config.vocab_size:
        raise TrimtabError(
            f"{folder}: the tokenizer has token ids up to {highest}, the model only {model.config.vocab_size} of them; they do not match"
        )
    return Policy.of(model.eval().to(device), tokenizer)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a local model folder. Raises ``TrimtabError`` where its files cannot be read."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    check_code(folder)
    # For a Qwen2 folder AutoTokenizer keeps only the vocabulary of tokenizer.json and puts Qwen2's own byte-level rules around it,
    # whatever the file says; the fast class takes the file as it is.
    exact = (folder / "tokenizer.json").is_file()
    try:
        return (PreTrainedTokenizerFast if exact else AutoTokenizer).from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise TrimtabError(f"{folder}: the tokenizer files cannot be read ({error}); save the tokenizer again") from error


def save_policy(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, path: str | Path) -> None:
    """Write a Hugging Face folder that ``transformers`` loads; ``path`` holds the old folder or the whole new one, never a part.

    The folder is written beside ``path``, flushed to disk and renamed. Raises ``TrimtabError`` where the disk refuses.
    """
    path = Path(path)
    _no_bars()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as scratch:
            new, old = Path(scratch) / "new", Path(scratch) / "old"
            model.save_pretrained(new)
            tokenizer.save_pretrained(new)
            for file in new.iterdir():
                _fsync(file)
            if path.exists():
                path.rename(old)
            try:
                new.rename(path)
            except OSError:
                if old.exists():
                    old.rename(path)
                raise
            _fsync(path.parent)
    except OSError as error:
        raise TrimtabError(f"cannot write the model folder {path} ({error.strerror}); free the disk or name another folder") from error


def _no_bars() -> None:
    """Progress bars of several processes would tear the live display."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
