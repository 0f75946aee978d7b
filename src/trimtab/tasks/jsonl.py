"""Prompts from JSONL files with a column map. Every error names the file, the line and the column."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trimtab import keyed
from trimtab.records import Json, TrimtabError
from trimtab.tasks.options import JsonlOptions
from trimtab.tasks.protocol import Prompt
from trimtab.tasks.template import fill, messages

log = logging.getLogger(__name__)

_HELD_OUT = 512  # most rows held out where the options name no number


class JsonlTask:
    """Rows of a file. Training rows whose prompt is also an evaluation prompt are left out."""

    def __init__(self, options: JsonlOptions) -> None:
        self.name = Path(options.path).stem
        rows = _read(options.path, "task.path", options)
        if options.eval_path is not None:
            evaluation = _read(options.eval_path, "task.eval_path", options)
        else:
            count = options.eval_rows or min(_HELD_OUT, math.ceil(options.eval_fraction * len(rows)))
            if count >= len(rows):
                raise TrimtabError.field("task.eval_rows", count, f"{options.path} has {len(rows)} rows, so nothing is left to train on")
            order = keyed.permutation(options.seed, 0, len(rows))
            evaluation = [rows[i] for i in sorted(order[:count])]
            rows = [rows[i] for i in sorted(order[count:])]
        held_out = {_identity(p) for p in evaluation}
        training = [p for p in rows if _identity(p) not in held_out]
        if len(training) < len(rows):
            log.warning("%s: %d training rows repeat an evaluation prompt and are left out", options.path, len(rows) - len(training))
        if not training:
            raise TrimtabError.field("task.path", options.path, "every row repeats an evaluation prompt, so nothing is left to train on")
        self._training = [replace(p, row=row) for row, p in enumerate(training)]
        self._evaluation = [replace(p, row=row) for row, p in enumerate(evaluation)]
        self.eval_size = len(evaluation)

    def __len__(self) -> int:
        return len(self._training)

    def prompt(self, row: int) -> Prompt:
        return self._training[row]

    def eval_prompt(self, row: int) -> Prompt:
        return self._evaluation[row]


def _identity(prompt: Prompt) -> str:
    return json.dumps(prompt.messages) if prompt.messages else prompt.text


def _read(path: str, field: str, options: JsonlOptions) -> list[Prompt]:
    rows: list[Prompt] = []
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    rows.append(_row(line, f"{field} = {path!r}: line {number}", options))
    except OSError as error:
        raise TrimtabError.field(field, path, f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise TrimtabError.field(field, path, f"is not UTF-8 text ({error.reason} after row {len(rows)})") from None
    if not rows:
        raise TrimtabError.field(field, path, "has no rows; one JSON object a line is wanted")
    return rows


def _row(line: str, where: str, options: JsonlOptions) -> Prompt:
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise TrimtabError(f"{where} is not JSON ({error.msg} at column {error.colno})") from None
    if not isinstance(data, dict):
        raise TrimtabError(f"{where} is a JSON {type(data).__name__}, not an object")

    def column(role: str, name: str) -> Json:
        if name not in data:
            has = ", ".join(sorted(data)) or "none"
            raise TrimtabError(f"{where} has no column {name!r} (it has {has}); set task.columns.{role} to the column of the {role}")
        value: Json = data[name]
        return value

    columns = options.columns
    answer = "" if columns.answer is None else _text(column("answer", columns.answer))
    source = Path(options.path).stem if columns.source is None else _text(column("source", columns.source))
    if columns.messages is not None:
        talk = _conversation(column("messages", columns.messages), f"{where}, column {columns.messages!r}")
        text = next(m["content"] for m in reversed(talk) if m["role"] == "user")
    else:
        prompt = _text(column("prompt", columns.prompt))
        try:
            text = fill(options.template, {**data, "prompt": prompt}, options.compact)
        except TrimtabError as error:
            raise TrimtabError(f"{where}: {error}") from None
        talk = messages(text, options.chat, options.system)
    return Prompt(row=0, text=text, answer=answer, source=source, data=data, messages=talk)


def _text(value: Json) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _conversation(value: Json, where: str) -> tuple[Mapping[str, str], ...]:
    """A list of {role, content} strings with a user message."""
    talk: list[dict[str, str]] = []
    for message in value if isinstance(value, list) else [value]:
        if not (isinstance(message, dict) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)):
            raise TrimtabError(f"{where}: a conversation is a list of objects with the strings role and content")
        talk.append({"role": str(message["role"]), "content": str(message["content"])})
    if not any(m["role"] == "user" for m in talk):
        raise TrimtabError(f"{where}: the conversation has no message of role user")
    return tuple(talk)
