"""Extras: packages that not every run needs, installed as ``pip install "trimtab[report]"`` and imported where they are used."""

from __future__ import annotations

from importlib.util import find_spec

from trimtab.records import TrimtabError

# Extra -> what it adds that is imported: module -> the name of its package (pyproject.toml).
EXTRAS: dict[str, dict[str, str]] = {
    "report": {"matplotlib": "matplotlib"},
    "tensorboard": {"tensorboard": "tensorboard"},
    "environments": {"reasoning_gym": "reasoning-gym"},
    "lab": {"simpy": "simpy", "matplotlib": "matplotlib", "reasoning_gym": "reasoning-gym"},
}


class MissingExtra(TrimtabError):
    """What was asked for needs a package that is not installed."""


def missing(extra: str) -> str | None:
    """The first package of an extra that is not installed."""
    return next((package for module, package in EXTRAS[extra].items() if not _there(module)), None)


def require(extra: str, asked: str) -> None:
    """Refuse what needs an extra that is not installed. ``asked`` begins the sentence: the field and its value, or the command.

    Raises:
        MissingExtra: with the package, and the command that installs the extra.
    """
    package = missing(extra)
    if package is not None:
        raise MissingExtra(f'{asked} needs the package {package}, which is not installed: pip install "trimtab[{extra}]"')


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # an importer that refuses it, or a module that was put in place by hand
        return False
