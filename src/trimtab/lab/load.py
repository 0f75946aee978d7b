"""Experiment files: those that ship, and your own."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

from pydantic import BaseModel, ValidationError

from trimtab.config.load import presets, read_table, validate
from trimtab.config.run import RunConfig
from trimtab.foreign import parse_toml
from trimtab.lab import store, warm
from trimtab.lab.mistakes import sentence
from trimtab.lab.options import ExperimentOptions
from trimtab.lab.results import CellName
from trimtab.lab.spec import Experiment
from trimtab.records import Json, TrimtabError

FOLDER = Path(str(resources.files("trimtab.lab").joinpath("experiments")))
SMOKE = "smoke"  # in the laboratory's folder: results that are no results


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


def taken(name: str) -> str:
    """Why your own experiment cannot have this name; "" where it can: its results go to a folder called so."""
    if name in shipped():
        return f"the name {name} ships with Trimtab and owns its results"
    return f"{name} is a folder of the laboratory itself" if name in (SMOKE, store.FOLDER, warm.FOLDER) else ""


def load(source: str) -> Loaded:
    """An experiment by the name of a shipped one, or by path.

    Raises:
        TrimtabError: there is none, or it is not sound: one sentence that names the field, its value and the remedy.
    """
    if source in shipped():
        path = FOLDER / f"{source}.toml"
    elif source.endswith(".toml"):
        path = Path(source)
        why = taken(path.stem)
        if why and path.resolve().parent != FOLDER.resolve():
            raise TrimtabError.field("experiment", source, f"{why}; rename the file")
    else:
        near = difflib.get_close_matches(source, shipped(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(shipped())}, or give the path of your own .toml file"
        raise TrimtabError.field("experiment", source, hint)
    try:
        table = parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise TrimtabError.field("experiment", source, f"the file cannot be read ({error})") from None
    except ValueError as error:
        raise TrimtabError.field("experiment", source, f"not valid TOML: {error}") from None
    try:
        experiment = Experiment.model_validate(table)
    except ValidationError as error:
        raise TrimtabError(f"{source}: {sentence(table, error.errors(), _vocabulary())}") from None
    except TrimtabError as error:
        raise TrimtabError(f"{source}: {error}") from None
    return Loaded(path.stem, source, path, experiment)


def _vocabulary() -> list[str]:
    """Every key of an experiment file."""
    return sorted({name for model in _models(ExperimentOptions) for name in model.model_fields})


def _models(base: type[BaseModel]) -> list[type[BaseModel]]:
    return [base, *(model for sub in base.__subclasses__() for model in _models(sub))]
