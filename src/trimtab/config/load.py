"""From a TOML file or a preset, with ``key=value`` overrides, to a validated :class:`RunConfig`; errors are one sentence each."""

from __future__ import annotations

import copy
import difflib
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import cast

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from trimtab.config.run import RunConfig
from trimtab.foreign import DEPTH, parse_json, parse_toml
from trimtab.plugins import Kinds, kind_names
from trimtab.records import Json, TrimtabError

Table = dict[str, Json]


def presets() -> list[str]:
    """Names that can stand in place of a file."""
    return sorted(
        p.name.removesuffix(".toml") for p in resources.files("trimtab.config").joinpath("presets").iterdir() if p.name.endswith(".toml")
    )


def read_table(source: str) -> Table:
    """The TOML of a file, or of the preset of that name."""
    path = Path(source)
    if path.suffix != ".toml" and source in presets():
        text = resources.files("trimtab.config").joinpath("presets", f"{source}.toml").read_text()
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, IsADirectoryError):
            raise TrimtabError.field(
                "config", source, f"no such file, and no preset of that name (presets: {', '.join(presets())})"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise TrimtabError.field("config", source, f"cannot be read ({error})") from None
    try:
        return cast(Table, parse_toml(text))
    except ValueError as error:
        raise TrimtabError.field("config", source, f"not valid TOML: {error}") from None


def read_resolved(path: Path) -> Table:
    """The configuration that a run folder keeps as ``config.json``."""
    try:
        table = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TrimtabError(f"{path} cannot be read ({error}); restore it from a copy") from None
    if not isinstance(table, dict):
        raise TrimtabError(f"{path} is not a JSON object; restore it from a copy")
    return cast(Table, table)


def override(table: Table, assignments: Sequence[str]) -> Table:
    """``learner.optimizer.lr=3e-4`` style assignments on a copy of the table; values are TOML, a bare word is a string.

    One that changes a ``kind`` starts that table anew, before the others: the old kind's keys mean nothing to the new one.
    """
    out = copy.deepcopy(table)
    for assignment in sorted(assignments, key=lambda a: not a.partition("=")[0].strip().endswith(".kind")):
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise TrimtabError.field("override", assignment, "write key=value, as in learner.batches=100")
        *tables, last = key.strip().split(".")
        if len(tables) > DEPTH:
            raise TrimtabError.field("override", assignment, f"no key has {len(tables)} dots")
        node = out
        for part in tables:
            child = node.setdefault(part, {})
            if not isinstance(child, dict):
                if part == "methods":
                    remedy = 'methods is a list; set it whole, as in methods=["vcpo", {name="opob", weighting="exact"}]'
                    raise TrimtabError.field("override", assignment, remedy)
                raise TrimtabError.field("override", assignment, f"{part} is a value, not a table")
            node = child
        value = _value(assignment, text.strip())
        if last == "kind" and node.get("kind") != value:
            node.clear()
        node[last] = value
    return out


def _value(assignment: str, text: str) -> Json:
    try:
        return cast(Json, parse_toml(f"x = {text}")["x"])
    except tomllib.TOMLDecodeError as error:
        if text[:1] in ("[", "{", '"', "'"):
            hint = "quote it, or the shell takes its quotation marks away, as in 'methods=[\"vcpo\"]'"
            raise TrimtabError.field("override", assignment, f"{text} is no TOML value ({error}); {hint}") from None
        return text
    except ValueError as error:
        raise TrimtabError.field("override", assignment, f"it cannot be read: {error}") from None


def validate(table: Mapping[str, Json]) -> RunConfig:
    """The configuration, or one sentence that names the field, its value and the remedy."""
    _check_values(table)
    try:
        return RunConfig.model_validate(_with_kinds(RunConfig, table))
    except ValidationError as error:
        raise _sentence(error.errors()[0]) from None


def _check_values(table: Mapping[str, Json], prefix: str = "") -> None:
    """Refuse what no option can mean and what reads fails on later: integers beyond 64 bits, text that no file name can hold."""
    for key, value in table.items():
        where = f"{prefix}{key}"
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict | list):
                _check_values(item if isinstance(item, dict) else {"": item}, f"{where}.")
            elif isinstance(item, int) and item.bit_length() > 63:
                raise TrimtabError.field(where, item, "an integer beyond 64 bits; give a smaller one")
            elif isinstance(item, str) and ("\0" in item or not _encodes(item)):
                raise TrimtabError.field(where, item, "it holds a null character or is not UTF-8 text; leave it out")


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _with_kinds(model: type[BaseModel], table: Mapping[str, Json]) -> Table:
    """A table that does not say its kind is of the default kind, where there is one."""
    out = dict(table)
    for name, info in model.model_fields.items():
        inner = out.get(name)
        if not isinstance(inner, dict):
            continue
        if info.discriminator == "kind" and isinstance(info.default, BaseModel):
            out[name] = {"kind": str(info.default.model_dump()["kind"]), **inner}
        elif isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            out[name] = _with_kinds(info.annotation, inner)
    return out


def load(source: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration of a TOML file, or of the preset of that name, with ``key=value`` overrides such as ``learner.batches=100``.

    Raises:
        TrimtabError: the file cannot be read, or what it says is refused; one sentence that names the field, its value and the remedy.
    """
    return validate(override(read_table(source), overrides))


def _sentence(first: ErrorDetails) -> TrimtabError:
    where, siblings = _locate(first["loc"])
    name, said = ".".join(where) or "config", first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(where[-1], siblings, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known keys here: {', '.join(siblings) or 'none'}"
        return TrimtabError.field(name, first["input"], f"unknown key; {hint}")
    if first["type"] == "union_tag_not_found":
        return TrimtabError(
            f'{name}.kind is missing: say which kind it is, as in {name}.kind = "..." (see `trimtab config show quickstart`)'
        )
    if first["type"] == "union_tag_invalid":
        context = first.get("ctx", {})
        return TrimtabError.field(f"{name}.kind", context.get("tag"), f"unknown kind; use one of {context.get('expected_tags')}")
    if first["type"] == "missing":
        return TrimtabError(f"{name} is missing: it has no default, set it in the file or as {name}=VALUE")
    if first["type"] == "value_error" and isinstance(first["input"], dict):
        return TrimtabError(said)  # what fields of one table say together; it names them
    return TrimtabError.field(name, first["input"], said)


def _locate(loc: Sequence[int | str]) -> tuple[list[str], list[str]]:
    """(the keys as they stand in the file, the keys known where the last of them stands).

    Pydantic's path also has the tag that chose a member of a union; the file does not.
    """
    path: list[str] = []
    models: list[type[BaseModel]] = [RunConfig]
    around = models
    for step in loc:
        part = str(step)
        tagged = [m for m in models if part in kind_names(m)]
        if tagged and len(models) > 1:
            models = tagged
            continue
        path.append(part)
        around = models
        models = [inner for m in models if part in m.model_fields for inner in tables(m.model_fields[part])]
    return path, sorted({name for m in around for name in m.model_fields})


def tables(info: FieldInfo) -> list[type[BaseModel]]:
    """The tables that may stand in a field."""
    several = next((mark for mark in info.metadata if isinstance(mark, Kinds)), None)
    return _within(info.annotation) if several is None else several.classes(cast(type[BaseModel], info.annotation))


def _within(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for inner in getattr(annotation, "__args__", ()) for m in _within(inner)]


def to_toml(config: RunConfig) -> str:
    """The resolved configuration: every default written out, bundles expanded.

    TOML has no null. A field that is None by default is left out, one that is not is written as "none".
    """
    table = _written(config)
    table["methods"] = [{k: v for k, v in m.items() if v is not None} for m in config.chain().describe()]
    return tomli_w.dumps(table)


def _written(model: BaseModel) -> Table:
    out: Table = {}
    for (name, info), dumped in zip(type(model).model_fields.items(), model.model_dump(mode="json").values(), strict=True):
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            out[name] = _written(value)
        elif value is not None:
            out[name] = _without_null(dumped)
        elif info.default is not None:
            out[name] = "none"
    return out


def _without_null(value: Json) -> Json:
    if isinstance(value, list):
        return [_without_null(item) for item in value]
    return {k: _without_null(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value


def differences(old: Mapping[str, Json], new: Mapping[str, Json], prefix: str = "") -> dict[str, tuple[Json, Json]]:
    """Dotted keys whose values differ, with (old, new)."""
    out: dict[str, tuple[Json, Json]] = {}
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            out.update(differences(a, b, f"{prefix}{key}."))
        elif a != b:
            out[f"{prefix}{key}"] = (a, b)
    return out
