"""From a TOML file or a preset, with ``key=value`` overrides, to a validated :class:`RunConfig`; errors are one sentence each."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import cast

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trimtab.config.run import RunConfig
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
    elif path.is_file():
        text = path.read_text()
    else:
        raise TrimtabError.field("config", source, f"no such file, and no preset of that name (presets: {', '.join(presets())})")
    try:
        return cast(Table, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise TrimtabError.field("config", source, f"not valid TOML: {error}") from None


def override(table: Table, assignments: Sequence[str]) -> Table:
    """``learner.optimizer.lr=3e-4`` style assignments on a copy of the table; values are TOML, anything else is a string."""
    out = _copy(table)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise TrimtabError.field("override", assignment, "write key=value, as in learner.batches=100")
        parts = key.strip().split(".")
        node = out
        for part in parts[:-1]:
            child = node.setdefault(part, {})
            if not isinstance(child, dict):
                raise TrimtabError.field("override", assignment, f"{part} is a value, not a table")
            node = child
        node[parts[-1]] = _value(text.strip())
    return out


def _copy(value: Json) -> Table:
    def deep(x: Json) -> Json:
        if isinstance(x, dict):
            return {k: deep(v) for k, v in x.items()}
        return [deep(v) for v in x] if isinstance(x, list) else x

    return cast(Table, deep(value))


def _value(text: str) -> Json:
    try:
        return cast(Json, tomllib.loads(f"x = {text}")["x"])
    except tomllib.TOMLDecodeError:
        return text


def validate(table: Mapping[str, Json]) -> RunConfig:
    """The configuration, or one sentence that names the field, its value and the remedy."""
    try:
        return RunConfig.model_validate(table)
    except ValidationError as error:
        raise _sentence(error.errors()[0]) from None


def load(source: str, overrides: Sequence[str] = ()) -> RunConfig:
    return validate(override(read_table(source), overrides))


def _sentence(first: ErrorDetails) -> TrimtabError:
    # Discriminator values and validator names are steps of pydantic's path, not of the user's file.
    kinds = {"torch", "latency", "scripted", "lockstep", "local", "reasoning_gym", "jsonl", "constant", "wsd"}
    where = [str(part) for part in first["loc"] if str(part) not in kinds]
    name = ".".join(where) or "config"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(where[-1], _fields(where[:-1]), n=1)
        hint = f"did you mean {near[0]}?" if near else f"known keys here: {', '.join(_fields(where[:-1])) or 'none'}"
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
    return TrimtabError.field(name, first["input"], first["msg"].removeprefix("Value error, "))


def _fields(path: Sequence[str]) -> list[str]:
    """Names of the fields at a path of the configuration; for a union, of all its members."""
    models: list[type[BaseModel]] = [RunConfig]
    for part in path:
        models = [m for model in models for m in _models(model.model_fields[part].annotation if part in model.model_fields else None)]
    return sorted({name for model in models for name in model.model_fields})


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for inner in getattr(annotation, "__args__", ()) for m in _models(inner)]


def to_toml(config: RunConfig) -> str:
    """The resolved configuration: every default written out, bundles expanded. TOML has no null: absent keys are None."""
    table = config.model_dump(mode="json", exclude_none=True)
    table["methods"] = config.chain().describe()
    return tomli_w.dumps(table)


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
