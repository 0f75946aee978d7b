"""Strings that end a response, found in its text across the borders of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trimtab.records import I32

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARGIN = 4  # tokens decoded before the longest stop could begin: a character is at most four of them, a decoder may drop a first blank


class StopStrings:
    """Special tokens count as their text. The tokens that hold a stop string are sampled like any other, and stay actions."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Sequence[str]) -> None:
        self._tokenizer, self._strings = tokenizer, tuple(strings)
        self._window = _MARGIN + max(len(s.encode()) for s in strings)  # a token is a byte at least
        self._last = frozenset(s[-1] for s in strings)
        self._may_end: dict[int, bool] = {}

    def ends(self, response: I32) -> bool:
        """Whether the text so far holds a stop string. Asked after every token, so only the last tokens are looked at."""
        if not len(response) or not self._may(int(response[-1])):
            return False
        text = self._decode(response[-self._window :].tolist())
        return any(s in text for s in self._strings)

    def cut(self, ids: Sequence[int], text: str, *, keep: bool) -> str:
        """``text``, that of ``ids`` with or without special tokens, up to its first stop string; ``keep``: up to that one's end."""
        raw = self._decode(list(ids))
        places = [(at, at + len(s)) for s in self._strings if (at := raw.find(s)) >= 0]
        if not places:
            return text
        begin, end = min(places)
        return text.removesuffix(raw[end if keep else begin :])

    def _may(self, token: int) -> bool:
        """Whether a stop string can be complete with this token: its last character is in the token's text, or may be a part of it."""
        if token not in self._may_end:
            piece = self._decode([token])
            self._may_end[token] = any(c in piece or c.isspace() for c in self._last) or "\ufffd" in piece
        return self._may_end[token]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
