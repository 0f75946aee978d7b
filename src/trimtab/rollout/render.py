"""Prompt to token ids, response ids to the text a scorer sees. The text is a view: what is trained are the sampled ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from trimtab.records import I32, Json, TrimtabError
from trimtab.rollout.steps import completing_tokens
from trimtab.rollout.stops import StopStrings
from trimtab.rollout.turns import through
from trimtab.tasks.protocol import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NORMALIZED = 3  # NFC makes of a text at most three times as many bytes (Unicode Standard Annex 15), and leaves ASCII as it is


class Renderer:
    """``context``: longest prompt + response in tokens; ``stop_ids``, ``stops``: the ids and the strings that end a response.

    ``template_args``: what the chat template is given beside the conversation. ``skip_special``: special tokens are no part of the text
    that a scorer sees; ``keep_stop``: the stop string that ended it is. ``notes``: what a person should know.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        context: int,
        max_new_tokens: int,
        stop_ids: tuple[int, ...],
        stops: StopStrings | None = None,
        template_args: Mapping[str, Json] | None = None,
        skip_special: bool = True,
        keep_stop: bool = False,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.stop_ids, self.stops, self.notes = stop_ids, stops, notes
        self._template_args = dict(template_args or {})
        self._skip_special, self._keep_stop = skip_special, keep_stop
        self._tokenizer = tokenizer
        self._pieces: dict[int, str] = {}  # texts of single tokens
        self._context, self._max_new_tokens = context, max_new_tokens
        self._bytewise = _bytewise(tokenizer)

    def ids(self, prompt: Prompt) -> I32:
        """BOS (where the tokenizer has one) and the text, or the conversation through the chat template.

        Raises TrimtabError naming the row for a prompt that leaves no room for the response, is empty, holds text the tokenizer
        has no token for, or does not go through the template.
        """
        ids = self._conversation(prompt) if prompt.messages else self._text(prompt)
        limit = self._context - self._max_new_tokens
        if len(ids) > limit:
            raise TrimtabError(
                f"the prompt of {prompt.named} has {len(ids)} tokens; the context of {self._context} less "
                f"rollout.max_new_tokens = {self._max_new_tokens} leaves {limit}: shorten it or lower max_new_tokens"
            )
        if not ids:
            raise TrimtabError(f"the prompt of {prompt.named} is empty and the tokenizer has no BOS: the first token needs a context")
        return np.array(ids, dtype=np.int32)

    def surely_fits(self, prompt: Prompt) -> bool:
        """True only where :meth:`ids` raises nothing, at a fraction of its cost. Raises what the chat template raises.

        A byte-level tokenizer has a token for everything, and makes no more tokens than there are bytes after its normalization.
        """
        if not self._bytewise:
            return False
        text = prompt.text
        if prompt.messages:
            text = str(self._through(prompt, tokenize=False))
        most = len(text) if text.isascii() else _NORMALIZED * len(text.encode())
        return 0 < most < self._context - self._max_new_tokens

    def text(self, response: I32) -> str:
        """The response without the id or the string that ended it, and without special tokens, unless they were asked for."""
        ids = self._said(response).tolist()
        text = self._decode(ids)
        return text if self.stops is None else self.stops.cut(ids, text, keep=self._keep_stop)

    def completing(self, response: I32, ends: Sequence[int | None]) -> list[int]:
        """For each of ``ends``, the index in ``response`` of the token that completes so many characters of its text; None: the last."""
        ids = self._said(response).tolist()
        characters = [end for end in ends if end is not None]
        found = iter(completing_tokens(ids, self._decode(ids), characters, self._piece, self._decode))
        return [len(response) - 1 if end is None else next(found) for end in ends]

    def _said(self, response: I32) -> I32:
        ended = len(response) > 0 and int(response[-1]) in self.stop_ids
        return response[:-1] if ended else response

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=self._skip_special, clean_up_tokenization_spaces=False))

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = self._decode([token])
        return self._pieces[token]

    def _text(self, prompt: Prompt) -> list[int]:
        tokenizer = self._tokenizer
        ids: list[int] = tokenizer.encode(prompt.text, add_special_tokens=False)
        for token in (tokenizer.unk_token, tokenizer.pad_token):  # what tokenizers put where they know no token
            if token is not None and token not in prompt.text and tokenizer.convert_tokens_to_ids(token) in ids:
                raise TrimtabError(f"the prompt of {prompt.named} holds text the tokenizer has no token for: {prompt.text[:80]!r}")
        return ids if tokenizer.bos_token_id is None else [tokenizer.bos_token_id, *ids]

    def _conversation(self, prompt: Prompt) -> list[int]:
        return cast(list[int], self._through(prompt, tokenize=True, return_dict=False))

    def _through(self, prompt: Prompt, **how: bool) -> object:
        from jinja2 import TemplateError

        try:
            return through(self._tokenizer, prompt.messages, self._template_args, add_generation_prompt=True, **how)
        except (TemplateError, ValueError, TypeError) as error:  # ValueError: the tokenizer has no template
            raise TrimtabError(f"the conversation of {prompt.named} does not go through the chat template ({error})") from error


def _bytewise(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer is byte-level BPE without a normalizer, or with one that composes characters."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return False
    known = backend.normalizer is None or repr(backend.normalizer) == "NFC()"
    return known and type(backend.model).__name__ == "BPE" and "ByteLevel" in repr(backend.pre_tokenizer)
