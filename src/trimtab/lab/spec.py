"""An experiment file: a claim, the arms and axes that test it, what is measured, which figures, and what would falsify it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Annotated, Self

from pydantic import ConfigDict, Field, JsonValue, field_validator, model_validator

from trimtab.config.run import RunConfig
from trimtab.config.shaped import shaped
from trimtab.lab.checks import Check
from trimtab.lab.figures import Bars, Curves, Figure, Heat, Sweep
from trimtab.lab.measures import Alarm, Crosses, Difference, Measure, Versus
from trimtab.lab.options import ExperimentOptions, Scalar, Where, as_tuple, known
from trimtab.lab.results import CellName
from trimtab.records import Json, TrimtabError

Table = dict[str, JsonValue]  # overrides of a run's configuration, as in a configuration file
Name = Annotated[
    str,
    shaped(
        r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,99}",
        "it becomes part of file names: use letters, digits, dots, hyphens, pluses and underscores, 100 at most, no dot, hyphen or plus "
        "first",
    ),
]
SMOKE: Table = {"learner": {"batches": 3}, "eval": {"prompts": 8}}


class Arm(ExperimentOptions):
    """One of the things compared: whatever it overrides of the configuration, written as in a configuration file."""

    model_config = ConfigDict(extra="allow", frozen=True)

    label: str = Field("", description="in figures and tables; default: the arm's name")
    options: dict[str, JsonValue] = Field(default_factory=dict, description="of the runner, where they differ from the experiment's")
    only: dict[str, tuple[Scalar, ...]] = Field(default_factory=dict, description="axis -> the values at which it is run; default: all")

    @property
    def overrides(self) -> Table:
        return dict(self.model_extra or {})


class SweptAxis(ExperimentOptions):
    """Something varied for every arm: ``key`` of the configuration over a list, or named tables of overrides."""

    key: str | None = Field(None, description="dotted, such as runtime.lag")
    values: tuple[Scalar, ...] | dict[Name, Table]
    label: str = Field("", description="in figures; default: the axis's name")

    @model_validator(mode="after")
    def _either(self) -> Self:
        if isinstance(self.values, dict) == (self.key is not None):
            raise ValueError("values is a list with a key, or tables by name without one")
        if not self.values:
            raise ValueError("values is empty: an axis needs at least one")
        if len({*self.values}) < len(self.values) or len({str(v) for v in self.values}) < len(self.values):
            raise ValueError("a value is there twice: each is a cell of its own")
        return self

    def overrides(self, value: Scalar) -> Table:
        if isinstance(self.values, dict):
            return self.values[str(value)]
        out: JsonValue = value
        for part in reversed(str(self.key).split(".")):
            out = {part: out}
        assert isinstance(out, dict)
        return out


class Variation(Where):
    """Cells that differ: not run, run with other seeds, or with further overrides."""

    skip: bool = False
    seeds: int | None = Field(None, ge=1)
    set: Table = Field(default_factory=dict)


class Reference(ExperimentOptions):
    """Numbers measured elsewhere, shown beside our own: measure -> cell -> one value, or one a seed."""

    source: str
    values: dict[str, dict[str, float | tuple[float, ...]]]


class Experiment(ExperimentOptions):
    """The whole file; its name is the file's."""

    claim: str
    source: str
    falsified_by: str
    about: str = Field("", description="what a reader should know: how the regime was chosen, what is not shown")
    same: str = Field(
        "initial checkpoint, prompts, group size, optimizer and number of samples", description="what does not differ between arms"
    )
    minutes: float | None = Field(None, gt=0, description="of one idle core, measured: what `trimtab lab list` says; default: a guess")
    preset: str = Field("quickstart", description="a preset, or a configuration file beside this one")
    runner: str = Field("train", description="train, another of trimtab.lab.runners, or your own module:function")
    options: dict[str, JsonValue] = Field(default_factory=dict, description="of the runner")
    alone: bool = Field(False, description="wall-clock matters: one run at a time, whatever --jobs says")
    seeds: int = Field(3, ge=1)
    base: Table = Field(default_factory=dict, description="overrides of every cell")
    arms: dict[Name, Arm] = Field(min_length=1)
    grid: dict[Name, SweptAxis] = Field(default_factory=dict)
    exceptions: tuple[Variation, ...] = ()
    measures: dict[Name, Measure] = Field(min_length=1)
    figures: tuple[Figure, ...] = ()
    checks: tuple[Check, ...] = Field(min_length=1)
    references: tuple[Reference, ...] = ()
    smoke: Table = Field(default_factory=lambda: dict(SMOKE), description="overrides of every cell of a smoke run")
    smoke_options: dict[str, JsonValue] = Field(default_factory=dict, description="of the runner, in a smoke run")

    @field_validator("arms")
    @classmethod
    def _fields(cls, arms: dict[str, Arm]) -> dict[str, Arm]:
        for name, arm in arms.items():
            for key in arm.overrides:
                known(f"arms.{name}", key, [*RunConfig.model_fields, *Arm.model_fields])
        return arms

    @model_validator(mode="after")
    def _refers(self) -> Self:
        """What names an arm, an axis, a value, a measure or a cell names one that is there; and there is a cell."""
        for name, table in self._tables():
            if "seed" in table:
                raise TrimtabError.field(f"{name}.seed", table["seed"], "the laboratory gives seeds; say at the top how many: `seeds`")
        plain = [name for name, m in self.measures.items() if not isinstance(m, Difference | Versus)]
        for name, m in self.measures.items():
            if isinstance(m, Difference):
                known(f"measures.{name}.of", m.of, plain)
                known(f"measures.{name}.less", m.less, plain)
            elif isinstance(m, Versus):
                known(f"measures.{name}.of", m.of, plain)
                known(f"measures.{name}.arm", m.arm, self.arms)
        for i, e in enumerate(self.exceptions):
            self._where(f"exceptions.{i}", e)
        for name, arm in self.arms.items():
            self._where(f"arms.{name}.only", Where(at=dict(arm.only)))
        for i, c in enumerate(self.checks):
            self._where(f"checks.{i}", c.where())
            known(f"checks.{i}.measure", c.measure, self.measures)
            b = c.bound
            self._where(f"checks.{i}", Where(arm=b.arm or "*", at=b.at))
            if b.measure is not None:
                known(f"checks.{i}.measure", b.measure, self.measures)
        names = [c.name for c in self.cells()]
        if not names:
            raise TrimtabError.field("exceptions", "skip = true", "every cell is skipped; leave at least one")
        for i, r in enumerate(self.references):
            for measure, values in r.values.items():
                known(f"references.{i}.values", measure, self.measures)
                for cell in values:
                    known(f"references.{i}.values.{measure}", cell, names)
        for i, f in enumerate(self.figures):
            self._figure(f"figures.{i}", f)
        return self

    def _where(self, at: str, where: Where) -> None:
        for pattern in as_tuple(where.arm) or ("",):
            if not any(Where(arm=pattern).holds(name, {}) for name in self.arms):
                raise TrimtabError.field(f"{at}.arm", pattern, f"no arm is called so; there are {', '.join(self.arms)}")
        for axis, values in where.at.items():
            known(f"{at}.at", axis, self.grid)
            if not as_tuple(values):
                raise TrimtabError.field(f"{at}.at.{axis}", [], "it names no value; name one, or leave the axis out")
            for value in as_tuple(values):
                if value not in self.grid[axis].values:
                    listed = ", ".join(map(str, self.grid[axis].values))
                    raise TrimtabError.field(f"{at}.at.{axis}", value, f"no value of this axis; there are {listed}")

    def _figure(self, at: str, figure: Figure) -> None:
        self._where(at, Where(arm=figure.arm, at=figure.at))
        if isinstance(figure, Sweep | Bars | Heat):
            known(f"{at}.measure", figure.measure, self.measures)
        if isinstance(figure, Curves) and figure.align is not None:
            moments = [name for name, m in self.measures.items() if isinstance(m, Crosses | Alarm)]
            known(f"{at}.align", figure.align, moments)
        for axis in figure.axes():
            known(f"{at}.axis", axis, self.grid)
        if isinstance(figure, Heat):
            self._squares(at, figure)

    def _squares(self, at: str, heat: Heat) -> None:
        """A square of the table is one cell."""
        named = [axis for axis in (heat.rows, heat.columns, heat.by) if axis is not None]
        squares: dict[tuple[Scalar, ...], CellName] = {}
        for c in self.cells():
            if not heat.holds(c.arm, c.at):
                continue
            other = squares.setdefault(tuple(c.value(axis) for axis in named), c)
            if other != c:
                axis = next(axis for axis in ("arm", *self.grid) if other.value(axis) != c.value(axis))
                one_of = "arm" if axis == "arm" else f"at = {{ {axis} = ... }}"
                remedy = f"a square would be several cells, which differ in {axis}; choose by {one_of} or name it in rows, columns or by"
                raise TrimtabError.field(f"{at}.name", heat.name, remedy)

    # ------------------------------------------------------------------------------------------------ cells
    def cells(self, *, smoke: bool = False) -> list[CellName]:
        """All of them, arm by arm within each combination of axis values; a smoke run takes the last of every arm."""
        out = []
        for values in product(*(tuple(axis.values) for axis in self.grid.values())):
            at = dict(zip(self.grid, values, strict=True))
            for name, arm in self.arms.items():
                if Where(at=dict(arm.only)).holds(name, at) and not any(e.skip for e in self._of(name, at)):
                    out.append(CellName(name, at, self.label(name)))
        return list({cell.arm: cell for cell in out}.values()) if smoke else out

    def runner_options(self, arm: str, *, smoke: bool = False) -> dict[str, Json]:
        options = merge(self.options, self.arms[arm].options)
        return merge(options, self.smoke_options) if smoke else options

    def label(self, arm: str) -> str:
        return self.arms[arm].label or arm

    def seeds_of(self, cell: CellName, seeds: int | None) -> int:
        """How many seeds a cell gets where the experiment gets ``seeds`` (None: what its file says)."""
        own = [e.seeds for e in self._of(cell.arm, cell.at) if e.seeds is not None]
        wanted = own[-1] if own else self.seeds
        return wanted if seeds is None else seeds if not own else min(seeds, wanted)

    def table(self, preset: Mapping[str, Json], cell: CellName, seed: int, *, smoke: bool = False) -> Table:
        """A cell's configuration: preset, base, arm, axis values, exceptions, seed."""
        table = dict(preset)
        for overrides in self._overrides(cell):
            table = merge(table, overrides)
        if smoke:
            table = merge(table, self.smoke)
        return {**table, "seed": seed, "name": "cell"}

    def _overrides(self, cell: CellName) -> Iterator[Table]:
        yield self.base
        yield self.arms[cell.arm].overrides
        for axis, value in cell.at.items():
            yield self.grid[axis].overrides(value)
        for e in self._of(cell.arm, cell.at):
            yield e.set

    def _tables(self) -> Iterator[tuple[str, Table]]:
        """All overrides, with where they stand."""
        yield "base", self.base
        yield "smoke", self.smoke
        yield from ((f"arms.{name}", arm.overrides) for name, arm in self.arms.items())
        yield from ((f"grid.{name}", axis.overrides(value)) for name, axis in self.grid.items() for value in axis.values)
        yield from ((f"exceptions.{i}.set", e.set) for i, e in enumerate(self.exceptions))

    def _of(self, arm: str, at: Mapping[str, Scalar]) -> list[Variation]:
        return [e for e in self.exceptions if e.holds(arm, at)]


def merge(table: Mapping[str, Json], changes: Mapping[str, Json]) -> dict[str, Json]:
    """Tables into tables, key by key; lists and values replace. Another ``kind`` or ``name`` (of a task) starts its table anew.

    ``methods``, a list, takes a table as well: ``methods.seq_tis.c = 2.0`` changes an option of that method where it stands, or
    adds the method (which replaces a bundle's own).
    """
    out = dict(table)
    for key, new in changes.items():
        old = out.get(key)
        if key == "methods" and isinstance(new, dict):
            out[key] = _methods(old if isinstance(old, list) else [], new)
        elif isinstance(old, dict) and isinstance(new, dict):
            other = any(k in new and k in old and new[k] != old[k] for k in ("kind", "name"))
            out[key] = dict(new) if other else merge(old, new)
        else:
            out[key] = new
    return out


def _methods(entries: Sequence[Json], changes: Mapping[str, Json]) -> list[Json]:
    out: list[dict[str, Json]] = [dict(e) if isinstance(e, dict) else {"name": e} for e in entries]
    for name, options in changes.items():
        if not isinstance(options, dict):
            raise TrimtabError.field(f"methods.{name}", options, f"give a table of its options, as in methods.{name}.c = 2.0")
        mine = [e for e in out if e["name"] == name]
        if not mine:
            out.append({"name": name, **options})
        for entry in mine:
            entry.update(options)
    return list(out)
