"""Prompt templates: ``{field}`` filled from a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from string import Formatter
from typing import Any

from trimtab.records import TrimtabError


class _Filler(Formatter):
    """A null cell has no text: filled in, it would be the word ``None``."""

    def __init__(self, compact: bool) -> None:
        self._compact = compact

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str | int]:
        value, first = super().get_field(field_name, args, kwargs)
        if value is None:
            raise TrimtabError(f"the row's {field_name} is null, which has no text for task.template")
        return ("".join(str(value).split()) if self._compact else value), first


def fill(template: str, fields: Mapping[str, object], compact: bool) -> str:
    """``template.format(**fields)``; ``compact`` strips all white space from what is filled in.

    Raises TrimtabError naming the field: for one that the row lacks or that is null, and for what is no template.
    """
    try:
        return _Filler(compact).vformat(template, (), fields)
    except KeyError as missing:
        known = ", ".join(sorted(fields))
        raise TrimtabError(f"task.template = {template!r}: the row has no field {missing}; it has {known}") from None
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise TrimtabError(f"task.template = {template!r}: not a template ({error}); write {{field}}, and {{{{ for a brace") from None


@lru_cache(maxsize=16)
def uses(template: str, field: str) -> bool:
    """Whether ``field``, or a part of it, is filled in; False for what is no template."""
    try:
        names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError:
        return False
    return any(name.split(".")[0].split("[")[0] == field for name in names)


def messages(text: str, chat: bool, system: str | None) -> tuple[dict[str, str], ...]:
    """The conversation of a plain prompt: empty unless ``chat``."""
    if not chat:
        return ()
    user = {"role": "user", "content": text}
    return (user,) if system is None else ({"role": "system", "content": system}, user)


def answer_part(response: str, after: str | None) -> str:
    """The text after the last occurrence of ``after``, stripped; the whole response where ``after`` is None or absent."""
    return (response if after is None else response.rpartition(after)[2]).strip()
