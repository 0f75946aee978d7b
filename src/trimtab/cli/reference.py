"""The configuration reference, made of what the options say of themselves. Imports no torch."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from trimtab.config.load import tables
from trimtab.config.run import RunConfig
from trimtab.control.registry import method_class, names
from trimtab.plugins import kind_names

HEAD = """\
# Configuration reference

*Generated from the code by `trimtab config reference`; a test compares. Do not edit.*

A run is one TOML file. The headings are its tables, the rows its options. Any option can also be set on the command line, as in
`trimtab train my.toml learner.batches=100`. *required* has no default; *unset* is left out of the file, and the description says what
happens then. Where a table has a `kind`, each kind has its own options. `trimtab config show FILE` prints every value of a run.
"""
METHODS = """\
## methods

A list of names, or of tables with a name and options. These methods have options; what each does, when it fails and where it comes from
is told by `trimtab methods NAME`.
"""


def page() -> str:
    """The whole reference, in Markdown."""
    RunConfig.model_rebuild()
    lines = [HEAD, *_table("", [RunConfig], Page()), METHODS]
    for name in names():
        cls = method_class(name)
        if cls.Options.model_fields:
            lines += [f"### {name}\n", f"{cls.summary[:1].upper()}{cls.summary[1:]}.\n", *_rows(cls.Options.model_fields.items()), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


@dataclass
class Page:
    """Where each class of options stands, so that the same table is described once."""

    places: dict[type[BaseModel], str] = field(default_factory=dict)


def undescribed() -> list[str]:
    """Options and tables that say nothing of themselves; a ``kind`` is described by its class."""
    RunConfig.model_rebuild()
    found: list[str] = []
    seen: set[type[BaseModel]] = set()

    def walk(path: str, cls: type[BaseModel]) -> None:
        if cls in seen:
            return
        seen.add(cls)
        if not inspect.cleandoc(cls.__doc__ or "") or cls.__doc__ == cls.__mro__[1].__doc__:
            found.append(f"{path or 'the run'} ({cls.__name__})")
        for name, info in cls.model_fields.items():
            inner = tables(info)
            if not inner and not info.description and not (name == "kind" and len(kind_names(cls)) == 1):
                found.append(f"{path}.{name}".lstrip("."))
            for each in inner:
                walk(f"{path}.{name}".lstrip("."), each)

    walk("", RunConfig)
    for name in names():
        found += [f"methods.{name}.{key}" for key, info in method_class(name).Options.model_fields.items() if not info.description]
    return found


def _table(path: str, classes: list[type[BaseModel]], page: Page) -> Iterator[str]:
    """One heading for a table, a part for each of its kinds, then the tables within."""
    if path:
        yield f"## {path}\n"
    inner: dict[str, list[type[BaseModel]]] = {}
    for cls in classes:
        if cls in page.places:
            continue
        base = next((c for c in cls.__mro__[1:] if c in classes and c in page.places), None)
        page.places[cls] = path
        kinds = kind_names(cls)
        if len(classes) > 1:
            yield f"### {path}.kind = {' or '.join(json.dumps(kind) for kind in kinds)}\n"
        if path:
            yield f"{_prose(cls)}\n"
        fields = {name: info for name, info in cls.model_fields.items() if name != "kind" or len(kinds) > 1}
        if base is not None:
            fields = {name: info for name, info in fields.items() if _differs(info, base.model_fields.get(name))}
            told = " or ".join(json.dumps(kind) for kind in kind_names(base))
            yield f"{'Beside the options' if fields else 'It has the options'} of {told}{':' if fields else '.'}\n"
        plain = [(name, info) for name, info in fields.items() if not tables(info) or _listed(info)]
        if plain:
            yield from _rows(plain)
            yield ""
        for name, info in fields.items():
            found = [each for each in tables(info) if each is not _METHOD_ENTRY]
            known = inner.setdefault(name, [])
            known += [each for each in found if each not in known]
    for name, found in inner.items():
        where = f"{path}.{name}".lstrip(".")
        again = {page.places[each] for each in found if each in page.places}
        if found and all(each in page.places for each in found):
            yield f"## {where}\n\nThe options of [{min(again)}](#{_anchor(min(again))}).\n"
        elif found:
            yield from _table(where, found, page)


_METHOD_ENTRY = tables(RunConfig.model_fields["methods"])[0]


def _listed(info: FieldInfo) -> bool:
    """A list of tables: it is an option, and its tables are described below."""
    return get_origin(info.annotation) in (tuple, list)


def _differs(mine: FieldInfo, other: FieldInfo | None) -> bool:
    return other is None or (mine.annotation, mine.default, mine.description) != (other.annotation, other.default, other.description)


def _anchor(path: str) -> str:
    return path.replace(".", "").lower()


def _rows(fields: Iterable[tuple[str, FieldInfo]]) -> Iterator[str]:
    yield "| option | values | default | meaning |"
    yield "|---|---|---|---|"
    for name, info in fields:
        yield f"| `{name}` | {_values(info)} | {_default(info)} | {_cell(info.description or '')} |"


def _prose(cls: type[BaseModel]) -> str:
    """The class's own description, in Markdown."""
    text = inspect.cleandoc(cls.__doc__ or "")
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    text = re.sub(r"``", "`", text)
    return "\n\n".join(p for p in text.split("\n\n") if "made_by" not in p and not p.startswith("Raises"))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _values(info: FieldInfo) -> str:
    """What may stand there: choices, or type and bounds."""
    said = _type(info.annotation)
    bounds = [f"{sign} {_number(getattr(mark, key))}" for mark in info.metadata for key, sign in _BOUNDS if hasattr(mark, key)]
    return _cell(" ".join([said, ", ".join(bounds)]).strip())


_BOUNDS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _type(annotation: Any) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(args[0])
    if origin is Literal:
        return ", ".join(f"`{arg}`" for arg in args)
    if origin in (Union, UnionType):
        return " or ".join(_type(arg) for arg in args if arg is not NoneType)
    if origin in (tuple, list):
        inner = [arg for arg in args if arg is not Ellipsis]
        return "list" if Ellipsis in args or not inner else f"{len(inner)} x {_type(inner[0])}"
    if origin is dict or annotation is dict:
        return "table"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(f"`{member.value}`" for member in annotation)
    return {bool: "`true`, `false`", int: "integer", float: "number", str: "text"}.get(annotation, getattr(annotation, "__name__", ""))


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "*required*"
    value = info.default if info.default is not PydanticUndefined else info.get_default(call_default_factory=True)
    if value is None:
        return "*unset*"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, float):
        return f"`{value:g}`"
    if value in ((), {}):
        return "empty"
    return f"`{_cell(json.dumps(value))}`"
