"""Plug-ins: a name in a configuration may stand for code that Trimtab does not know. A group of entry points is the registry.

======================  =====================================================================================================
group                   an entry ``name = "package.module:Class"`` is
======================  =====================================================================================================
``trimtab.methods``     a method (:mod:`trimtab.control.registry`)
``trimtab.engines``     ``engine.kind``: a subclass of ``EngineOptions`` (``trimtab.engines.options``)
``trimtab.tasks``       ``task.kind``: a subclass of ``PromptOptions`` (``trimtab.tasks.options``)
``trimtab.shapings``    ``task.shaping.kind``: a subclass of ``ShapingOptions`` (``trimtab.tasks.shaping``)
``trimtab.critics``     ``learner.critic.kind``: a subclass of ``CriticOptions`` (``trimtab.learner.critic_options``)
``trimtab.admissions``  ``runtime.admission``: a subclass of ``Rule`` (``trimtab.pool.rules``)
======================  =====================================================================================================

A class of options has ``kind: Literal["the entry's name"]``, imports no torch, and names what is built from it as ``module:function``,
which is imported when it is needed. The laboratory registers what it alone needs like anybody else (``pyproject.toml``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from importlib.metadata import entry_points
from operator import or_
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import BaseModel, Field, GetCoreSchemaHandler, create_model, model_validator
from pydantic_core import CoreSchema, core_schema

from trimtab.records import TrimtabError

T = TypeVar("T")


def attribute(target: str) -> object:
    """What ``module:name`` stands for. Raises ImportError or AttributeError."""
    module, _, name = target.partition(":")
    found: object = getattr(import_module(module), name)
    return found


def targets(group: str) -> dict[str, str]:
    """Entry points of a group: name -> ``module:name``; nothing is imported."""
    return {point.name: point.value for point in entry_points(group=group)}


def load(target: str, base: type[T]) -> type[T]:
    """The class that an entry point names.

    Raises:
        TrimtabError: a clause without a field: it does not load, or is not a subclass of ``base``.
    """
    try:
        found = attribute(target)
    except (ImportError, AttributeError) as error:
        raise TrimtabError(f"its entry point {target} does not load ({error}); repair or uninstall it") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise TrimtabError(f"{target} is not a subclass of {base.__module__}.{base.__qualname__}")
    return found


def named(group: str, field: str, name: str, base: type[T], builtin: Sequence[str] = ()) -> type[T]:
    """The class registered under that name. ``builtin``: names that the caller knows without a class, for the refusal of others.

    Raises:
        TrimtabError: there is none, or it cannot be used.
    """
    known = targets(group)
    if name not in known:
        raise TrimtabError.field(field, name, f"there is no such one; use one of {', '.join((*builtin, *sorted(known)))}")
    try:
        return load(known[name], base)
    except TrimtabError as error:
        raise TrimtabError.field(field, name, str(error)) from error


@dataclass(frozen=True)
class Kinds:
    """Marks a field that holds one of several classes of options, told apart by ``kind``: built-in ones and those of a group.

    Written ``Annotated[Base, Kinds(group, field, builtin, default)]``. The group is looked at when a model is first used, not when it is
    imported (``defer_build``): a plug-in may import whatever it likes of Trimtab's options. ``default`` is the kind of a table that does
    not say its own. Built-in names cannot be taken. A plug-in that cannot be used is refused, with the reason, where a table asks for it.
    """

    group: str
    field: str  # as it stands in the file
    builtin: tuple[type[BaseModel], ...]
    default: str | None = None

    def classes(self, base: type[BaseModel]) -> list[type[BaseModel]]:
        """All that may stand there; ``base`` is what plug-ins have to be subclasses of."""
        taken = {name for cls in self.builtin for name in kind_names(cls)}
        others = sorted((name, target) for name, target in targets(self.group).items() if name not in taken)
        return [*self.builtin, *(_usable(self.field, name, target, base) for name, target in others)]

    def __get_pydantic_core_schema__(self, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        classes = self.classes(source)
        together = reduce(or_, classes)  # type: ignore[arg-type]  # the union of as many as there are
        schema = handler.generate_schema(Annotated[together, Field(discriminator="kind")] if len(classes) > 1 else together)
        return core_schema.no_info_before_validator_function(self._said, schema)

    def _said(self, value: object) -> object:
        return {"kind": self.default, **value} if isinstance(value, dict) and self.default is not None and "kind" not in value else value


def kind_names(cls: type[BaseModel]) -> tuple[str, ...]:
    """What may stand as ``kind`` of these options."""
    return get_args(cls.model_fields["kind"].annotation) if "kind" in cls.model_fields else ()


def _usable(field: str, name: str, target: str, base: type[BaseModel]) -> type[BaseModel]:
    try:
        found = load(target, base)
        if kind_names(found) != (name,):
            raise TrimtabError(f'its entry point {target} has not kind: Literal["{name}"]; repair or uninstall it')
        return found
    except TrimtabError as error:
        return _refusing(field, name, str(error))


def _refusing(field: str, name: str, why: str) -> type[BaseModel]:
    """Stands in for options that cannot be had."""

    def refuse(cls: type[BaseModel], value: object) -> object:
        raise TrimtabError.field(f"{field}.kind", name, why)

    validators = {"refuse": model_validator(mode="before")(refuse)}
    return create_model("Refusing", __validators__=validators, kind=(Literal[name], ...))  # type: ignore[arg-type]
