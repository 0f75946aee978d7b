"""Prompt templates: ``{field}`` filled from a row."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter

from trimtab.records import TrimtabError


def fill(template: str, fields: Mapping[str, object], compact: bool) -> str:
    """``template.format(**fields)``; ``compact`` strips all white space from what is filled in. Raises TrimtabError naming the field."""
    values = {name: "".join(str(value).split()) for name, value in fields.items()} if compact else fields
    try:
        return Formatter().vformat(template, (), values)
    except KeyError as missing:
        known = ", ".join(sorted(fields))
        raise TrimtabError(f"task.template = {template!r}: the row has no field {missing}; it has {known}") from None
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise TrimtabError(f"task.template = {template!r}: not a template ({error}); write {{field}}, and {{{{ for a brace") from None


def messages(text: str, chat: bool, system: str | None) -> tuple[dict[str, str], ...]:
    """The conversation of a plain prompt: empty unless ``chat``."""
    if not chat:
        return ()
    user = {"role": "user", "content": text}
    return (user,) if system is None else ({"role": "system", "content": system}, user)


def answer_part(response: str, after: str | None) -> str:
    """The text after the last occurrence of ``after``, stripped; the whole response where ``after`` is None or absent."""
    return (response if after is None else response.rpartition(after)[2]).strip()
