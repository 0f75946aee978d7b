"""Names of methods and bundles, and how a configured list becomes a chain's members.

Built-in methods are imported by name on first use; others come from the entry-point group ``trimtab.methods``
(``name = "package.module:Class"``), so a method of your own is configured like a built-in one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trimtab import plugins
from trimtab.control.protocol import Method
from trimtab.records import Json, TrimtabError

_GROUP = "trimtab.methods"
_CATALOGUE = "trimtab.methods.catalogue"  # by name: its methods import this room


class MethodEntry(BaseModel):
    """One item of ``methods``: a name, or a table with ``name`` and that method's own options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(description="of a method or a bundle; a bundle takes no options")

    @property
    def options(self) -> dict[str, Json]:
        return dict(self.model_extra or {})


@dataclass(frozen=True, slots=True)
class ChainMember:
    """A method with its options, and the bundle it came from ("" where the user wrote it, "default" where Trimtab added it)."""

    method: Method
    origin: str


def _builtin() -> Mapping[str, str]:
    targets: Mapping[str, str] = import_module(_CATALOGUE).BUILTIN
    return targets


def bundles() -> Mapping[str, tuple[dict[str, Json], ...]]:
    """The lists that a bundle's name stands for."""
    found: Mapping[str, tuple[dict[str, Json], ...]] = import_module(_CATALOGUE).BUNDLES
    return found


def names() -> list[str]:
    """All method names, built-in and registered, without importing any."""
    return sorted({*_builtin(), *plugins.targets(_GROUP)})


def method_class(name: str) -> type[Method]:
    """The class registered under ``name``; unknown names are refused with the known ones."""
    target = _builtin().get(name) or plugins.targets(_GROUP).get(name)
    if target is None:
        known = ", ".join([*names(), *sorted(bundles())])
        raise TrimtabError.field("methods", name, f"unknown method; use one of {known}")
    try:
        return plugins.load(target, Method)
    except TrimtabError as error:
        raise TrimtabError.field("methods", name, str(error)) from error


def build(name: str, options: dict[str, Json]) -> Method:
    """A method from its name and options; a bad option is one sentence that names it."""
    cls = method_class(name)
    try:
        return cls(cls.Options.model_validate(options))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "options"
        allowed = ", ".join(cls.Options.model_fields) or "none"
        said = "unknown option" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
        raise TrimtabError.field(f"methods.{name}.{where}", first["input"], f"{said}; options of {name}: {allowed}") from None


def expand(entries: Sequence[MethodEntry]) -> list[tuple[str, dict[str, Json], str]]:
    """Bundles replaced by their members: (name, options, origin). Options written beside a bundle's name are refused."""
    out: list[tuple[str, dict[str, Json], str]] = []
    for entry in entries:
        bundle = bundles().get(entry.name)
        if bundle is None:
            out.append((entry.name, entry.options, ""))
            continue
        if entry.options:
            key = next(iter(entry.options))
            parts = ", ".join(str(item["name"]) for item in bundle)
            raise TrimtabError.field(
                f"methods.{entry.name}.{key}", entry.options[key], f"a bundle takes no options; write the member beside it ({parts})"
            )
        for item in bundle:
            out.append((str(item["name"]), {k: v for k, v in item.items() if k != "name"}, entry.name))
    return out


def written(name: str, options: Mapping[str, Json]) -> str:
    """A method and its options as one reads them: ``norm_clip(max_norm=1.0)``."""
    listed = ", ".join(f"{key}={value}" for key, value in options.items())
    return f"{name}({listed})" if listed else name
