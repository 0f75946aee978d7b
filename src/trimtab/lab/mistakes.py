"""One sentence for what is wrong with an experiment file."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trimtab.records import Json, TrimtabError

M = TypeVar("M", bound=BaseModel)


def checked(model: type[M], options: Mapping[str, Json], *at: str) -> M:
    """A runner's ``options``, or what stands in them under the keys ``at``.

    Raises:
        TrimtabError: they are not what the model says.
    """
    given: object = options
    for key in at:
        given = given[key] if isinstance(given, Mapping) else None
    try:
        return model.model_validate(given)
    except ValidationError as error:
        errors: list[ErrorDetails] = [{**e, "loc": ("options", *at, *e["loc"])} for e in error.errors()]
        schema = model.model_json_schema()
        names = [name for part in (schema, *schema.get("$defs", {}).values()) for name in part.get("properties", {})]
        raise TrimtabError(sentence({"options": options}, errors, names)) from None


def sentence(table: Mapping[str, object], errors: Sequence[ErrorDetails], vocabulary: Sequence[str]) -> str:
    """What is wrong first; of a value that may be several things, what is wrong with the most elaborate of them."""
    top = errors[0]["loc"][:1]
    error = max((e for e in errors if e["loc"][:1] == top), key=lambda e: len(e["loc"]))
    kind, given, said = error["type"], error["input"], error["msg"].removeprefix("Value error, ")
    name = ".".join(_keys(table, error["loc"], missing=kind == "missing")) or "the file"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(error["loc"][-1]), vocabulary, n=1)
        return f"{name} = {given!r}: no such key here; {f'did you mean {near[0]}?' if near else 'docs/lab.md lists them'}"
    if kind == "missing":
        return f"{name} is missing: it has no default"
    if kind == "union_tag_not_found":
        return f"{name}.kind is missing: say which kind it is (docs/lab.md lists them)"
    if kind == "union_tag_invalid":
        context = error.get("ctx", {})
        return f"{name}.kind = {context.get('tag')!r}: use one of {context.get('expected_tags')}"
    return f"{name}: {said}" if isinstance(given, dict | list) else f"{name} = {given!r}: {said}"


def _keys(table: object, loc: Sequence[int | str], *, missing: bool) -> list[str]:
    """The keys as they stand in the file: pydantic's path also has the kinds of unions."""
    out = []
    for i, step in enumerate(loc):  # TOML has no null
        inner = table.get(step) if isinstance(table, dict) else table[step] if isinstance(table, list) and isinstance(step, int) else None
        if inner is not None:
            table = inner
        elif not (missing and i == len(loc) - 1):
            continue
        out.append(str(step))
    return out
