"""What the models of an experiment file share: strictness, and how cells are chosen by arm and axis value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from pydantic import BaseModel, ConfigDict, Field, field_validator

from trimtab.records import TrimtabError
from trimtab.telemetry.names import KNOWN, METHOD_PREFIX

Scalar = str | int | float | bool
At = Mapping[str, Scalar]  # axis -> the name of its value


class ExperimentOptions(BaseModel):
    """Part of an experiment file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Where(ExperimentOptions):
    """Cells by arm (a name, a pattern or several) and by axis values; what is not said does not matter."""

    arm: str | tuple[str, ...] = Field("*", description="names or patterns such as 'vcpo*'")
    at: dict[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict, description="axis -> a value, or several")

    def holds(self, arm: str, at: At) -> bool:
        patterns = (self.arm,) if isinstance(self.arm, str) else self.arm
        if not any(fnmatchcase(arm, pattern) for pattern in patterns):
            return False
        return all(axis in at and at[axis] in as_tuple(wanted) for axis, wanted in self.at.items())


def as_tuple(value: Scalar | tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    return value if isinstance(value, tuple) else (value,)


def known(what: str, name: str, names: Iterable[str]) -> None:
    """Refuse a name that is not there, with the nearest one that is."""
    names = list(names)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none'}"
        raise TrimtabError.field(what, name, hint)


class OfMetric(ExperimentOptions):
    """Something read off one metric of a run: a declared one, or one that a method reports, under ``method/``."""

    metric: str

    @field_validator("metric")
    @classmethod
    def _declared(cls, name: str) -> str:
        if name not in KNOWN and not name.startswith(METHOD_PREFIX):
            near = difflib.get_close_matches(name, KNOWN, n=1)
            raise ValueError(f"no such metric; {f'did you mean {near[0]}? ' if near else ''}what methods report is under {METHOD_PREFIX}")
        return name
