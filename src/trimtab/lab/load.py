"""Experiment files: those that ship, and your own."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trimtab.config.load import presets, read_table, validate
from trimtab.config.run import RunConfig
from trimtab.lab.results import CellName
from trimtab.lab.spec import Experiment
from trimtab.records import Json, TrimtabError

FOLDER = Path(str(resources.files("trimtab.lab").joinpath("experiments")))


@dataclass(frozen=True)
class Loaded:
    """An experiment and where it comes from. ``source`` is what the command line calls it: its name, or its path."""

    name: str
    source: str
    path: Path
    experiment: Experiment

    @cached_property
    def preset(self) -> dict[str, Json]:
        named = self.experiment.preset
        return read_table(named if named in presets() else str(self.path.parent / named))

    def config(self, cell: CellName, seed: int, *, smoke: bool = False) -> RunConfig:
        """The configuration of one run; what is wrong with it is told with the cell's name."""
        try:
            return validate(self.experiment.table(self.preset, cell, seed, smoke=smoke))
        except TrimtabError as error:
            raise TrimtabError(f"{self.source}, cell {cell.name}: {error}") from None


def shipped() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(source: str) -> Loaded:
    """An experiment by the name of a shipped one, or by path.

    Raises:
        TrimtabError: there is none, or it is not sound: one sentence that names the field, its value and the remedy.
    """
    if source in shipped():
        path = FOLDER / f"{source}.toml"
    elif source.endswith(".toml"):
        path = Path(source)
        if path.stem in shipped() and path.resolve().parent != FOLDER.resolve():
            raise TrimtabError.field("experiment", source, f"the name {path.stem} ships with Trimtab and owns its results; rename the file")
    else:
        near = difflib.get_close_matches(source, shipped(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(shipped())}, or give the path of your own .toml file"
        raise TrimtabError.field("experiment", source, hint)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise TrimtabError.field("experiment", source, f"the file cannot be read ({error})") from None
    except tomllib.TOMLDecodeError as error:
        raise TrimtabError.field("experiment", source, f"not valid TOML: {error}") from None
    try:
        experiment = Experiment.model_validate(table)
    except ValidationError as error:
        raise TrimtabError(f"{source}: {_sentence(error.errors()[0])}") from None
    except TrimtabError as error:
        raise TrimtabError(f"{source}: {error}") from None
    return Loaded(path.stem, source, path, experiment)


def _sentence(error: ErrorDetails) -> str:
    where, siblings = _locate(error["loc"])
    name, said = ".".join(where) or "the file", error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(where[-1], siblings, n=1)
        return f"{name} is no key; {f'did you mean {near[0]}?' if near else 'known here: ' + ', '.join(siblings)}"
    if error["type"] == "missing":
        return f"{name} is missing: it has no default"
    if error["type"] == "union_tag_not_found":
        return f"{name}.kind is missing: say which kind it is"
    if error["type"] == "union_tag_invalid":
        context = error.get("ctx", {})
        return f"{name}.kind = {context.get('tag')!r}: use one of {context.get('expected_tags')}"
    if isinstance(error["input"], dict | list):
        return f"{name}: {said}"
    return f"{name} = {error['input']!r}: {said}"


def _locate(loc: Sequence[int | str]) -> tuple[list[str], list[str]]:
    """The keys as they stand in the file (pydantic's path also has the kinds of unions), and those known beside the last."""
    path: list[str] = []
    here: list[type[BaseModel]] = [Experiment]
    beside: list[type[BaseModel]] = here
    inner: object = None
    for step in loc:
        part = str(step)
        tagged = [m for m in here if "kind" in m.model_fields and get_args(m.model_fields["kind"].annotation) == (part,)]
        if tagged and len(here) > 1:
            here = beside = tagged
            continue
        if (
            any(m.__name__ == part for m in here) or part in ("float", "str", "int", "bool") or "[" in part
        ):  # a member of a union without tags
            here = beside = [m for m in here if m.__name__ == part] or here
            continue
        path.append(part)
        if inner is not None:  # a key of a table by name, or a place in a list: what it holds comes next
            here, inner = _models(inner), None
            continue
        beside = here
        fields = [m.model_fields[part].annotation for m in here if part in m.model_fields]
        containers = [f for f in fields if get_origin(f) in (dict, tuple)]
        inner = get_args(containers[0])[-1 if get_origin(containers[0]) is dict else 0] if containers else None
        here = [] if containers else [model for f in fields for model in _models(f)]
    return path, sorted({name for m in beside for name in m.model_fields})


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, UnionType) or hasattr(annotation, "__metadata__"):
        return [m for inner in get_args(annotation) for m in _models(inner)]
    return []
