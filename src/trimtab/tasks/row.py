"""One line of a JSONL file to a prompt, and everything that makes a line no prompt: judged by the line and the options alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from trimtab.foreign import parse_json
from trimtab.records import Json, TrimtabError
from trimtab.tasks.options import JsonlOptions
from trimtab.tasks.protocol import Prompt
from trimtab.tasks.row_file import BadRow
from trimtab.tasks.template import fill, messages, uses

_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def parse(line: bytes, options: JsonlOptions, source: str) -> Prompt:
    """The prompt of a line, as row 0. ``source``: where the options name no column for it. Raises :class:`BadRow`."""
    data = _object(line)
    columns = options.columns

    def column(role: str, name: str) -> Json:
        if name not in data:
            has = ", ".join(sorted(data)) or "none"
            raise BadRow(f" has no column {name!r} (it has {has}); set task.columns.{role} to the column of the {role}")
        return data[name]

    answer = "" if columns.answer is None else _text(column("answer", columns.answer))
    if columns.source is not None:
        source = _text(column("source", columns.source))
    if columns.messages is not None:
        talk = _conversation(column("messages", columns.messages), f", column {columns.messages!r}")
        text = next(m["content"] for m in reversed(talk) if m["role"] == "user")
    else:
        prompt = _prompt(column("prompt", columns.prompt), columns.prompt, used=uses(options.template, "prompt"))
        try:
            text = fill(options.template, {**data, "prompt": prompt}, options.compact)
        except TrimtabError as error:
            raise BadRow(f": {error}") from None
        talk = messages(text, options.chat, options.system)
    if not text.strip():
        raise BadRow(": its prompt is empty")
    if options.reward == "exact" and not answer.strip():
        raise BadRow(f', column {columns.answer!r}: it is empty, and task.reward = "exact" has nothing to compare with')
    _encodable(text, answer, source, *(m["content"] for m in talk))
    return Prompt(row=0, text=text, answer=answer, source=source, data=data, messages=talk)


def identity(prompt: Prompt) -> int:
    """64 bits by which equal prompts are known."""
    said = json.dumps(prompt.messages) if prompt.messages else prompt.text
    return int.from_bytes(hashlib.blake2b(said.encode(), digest_size=8).digest(), "little")


def _object(line: bytes) -> dict[str, Json]:
    if line[:2] in _UTF16:
        raise BadRow(" is UTF-16 text; save the file as UTF-8")
    try:
        data = parse_json(line.decode())
    except UnicodeDecodeError as error:
        raise BadRow(f" is not UTF-8 text ({error.reason} at byte {error.start + 1})") from None
    except json.JSONDecodeError as error:
        raise BadRow(f" is not JSON ({error.msg} at column {error.colno})") from None
    except ValueError as error:  # a number of too many digits; lists within lists within lists
        raise BadRow(f" cannot be read as JSON ({error})") from None
    if not isinstance(data, dict):
        raise BadRow(f" is a JSON {type(data).__name__}, not an object")
    return data


def _text(value: Json) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _prompt(value: Json, name: str, *, used: bool) -> str:
    where = f", column {name!r}:"
    if isinstance(value, list | dict):
        raise BadRow(f"{where} it is a JSON {type(value).__name__}, not text; a conversation goes into task.columns.messages")
    if isinstance(value, bool):
        raise BadRow(f"{where} it is {json.dumps(value)}, not text")
    text = _text(value)
    if used and not text.strip():
        raise BadRow(f"{where} it is {'null' if value is None else 'empty'}, so there is no prompt")
    return text


def _conversation(value: Json, where: str) -> tuple[Mapping[str, str], ...]:
    """A list of {role, content} strings with a user message, which waits for the assistant's."""
    talk: list[dict[str, str]] = []
    for message in value if isinstance(value, list) else [value]:
        if not (isinstance(message, dict) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)):
            raise BadRow(f"{where}: a conversation is a list of objects with the strings role and content")
        talk.append({"role": str(message["role"]), "content": str(message["content"])})
    if not any(m["role"] == "user" for m in talk):
        raise BadRow(f"{where}: the conversation has no message of role user")
    if talk[-1]["role"] == "assistant":
        raise BadRow(f"{where}: the last message is the assistant's, so the prompt would hold an answer; take it out of the row's messages")
    if not talk[-1]["content"].strip():
        raise BadRow(f"{where}: the last message is empty")
    return tuple(talk)


def _encodable(*texts: str) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRow(f": it holds half a character (\\u{ord(text[error.start]):04x}), which is no text") from None
