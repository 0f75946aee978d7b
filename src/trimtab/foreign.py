"""Text from outside: read so that nothing but ValueError comes of it, and made printable before a person sees it.

Names of files, rollouts, prompts, what a reward raised, what stands in a run's files: all of it may hold escape sequences, which a
terminal obeys, line breaks, which make one message look like two, and ten megabytes. Wherever such text is shown it goes through here;
rich prints it as ``Text`` or without markup, so that brackets in it are brackets.
"""

from __future__ import annotations

import json
import tomllib
import unicodedata

LINE = 2000  # characters of a message that are shown
VALUE = 300  # of a value inside one
DEPTH = 100  # tables within tables, lists within lists

_JOINERS = "\u200c\u200d"  # Persian words and some emoji are spelled with them


def printable(text: str, limit: int = LINE) -> str:
    r"""One line, whatever it holds: control characters, line breaks and marks that turn the direction of writing appear as ``\x1b``,
    ``\n``, ``\u202e``; of a text longer than ``limit`` the middle is left out, and how much."""
    if len(text) > limit:
        head = limit * 3 // 4
        text = f"{text[:head]} ... ({len(text) - limit:,} characters left out) ... {text[len(text) - limit + head :]}"
    return text if text.isprintable() else "".join(map(_visible, text))


def printable_lines(text: str) -> str:
    """The same for text of several lines, such as a traceback: line breaks and tabs stay, and nothing is left out."""
    return text if text.isprintable() else "".join(c if c in "\n\t" else _visible(c) for c in text)


def shown(value: object, limit: int = VALUE) -> str:
    """``repr`` of a value, of a length that fits a sentence."""
    try:
        return printable(repr(value), limit)
    except (ValueError, RecursionError):  # an integer of thousands of digits; tables within tables without end
        return f"({type(value).__name__} too large to be shown)"


def mathtext(text: str) -> str:
    """For matplotlib, which reads what stands between two dollar signs as a formula."""
    return printable(text, VALUE).replace("$", r"\$")


def parse_json(data: str | bytes) -> object:
    """Raises ValueError where it is no JSON (JSONDecodeError), or has numbers of thousands of digits or more than ``DEPTH`` levels."""
    try:
        found: object = json.loads(data)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    many = data.count("[") + data.count("{") if isinstance(data, str) else data.count(b"[") + data.count(b"{")
    if many > DEPTH:
        _check_depth(found)
    return found


def parse_toml(text: str) -> dict[str, object]:
    """Raises ValueError where it is no TOML (TOMLDecodeError), or has numbers of thousands of digits or more than ``DEPTH`` levels."""
    try:
        found: dict[str, object] = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(found)
    return found


_TOO_DEEP = f"it is nested more than {DEPTH} levels deep"


def _check_depth(value: object) -> None:
    level, depth = [value], 0
    while level:
        if depth > DEPTH:
            raise ValueError(_TOO_DEEP)
        depth += 1
        level = [inner for x in level for inner in (x.values() if isinstance(x, dict) else x if isinstance(x, list) else ())]


def _visible(char: str) -> str:
    if char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs":
        return char
    return char.encode("unicode_escape").decode("ascii")
