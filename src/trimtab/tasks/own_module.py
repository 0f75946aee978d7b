"""Modules that a user brings lie in the directory the command is run in. They are found there, and hide no installed module.

A ``random.py`` or ``numpy.py`` in that directory must not be what every library imports under that name. So our processes are
started without it on their path (``python -P``), it comes last of all (:func:`search_last`), and the module that was asked for by
name, and only that one, is looked for there first (:func:`import_own`).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

import trimtab


def python_path() -> str:
    """PYTHONPATH for a process of ours: what ours was given without the current directory, and where this package lies."""
    package = str(Path(trimtab.__file__).parents[1])
    here = os.getcwd()
    given = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and os.path.abspath(p) != here]
    installed = os.path.basename(package) in ("site-packages", "dist-packages")  # such a folder must not come before the standard library
    return os.pathsep.join(given if installed or package in given else [package, *given])


def searched() -> list[str]:
    """Everything this process finds modules in, for :func:`search_last` of another."""
    return [p for p in sys.path if p]


def search_last(folders: Iterable[str]) -> None:
    """Look in these folders, too, and in the current one, after everything else."""
    for folder in (*folders, os.getcwd()):
        if folder not in sys.path:
            sys.path.append(folder)


def import_own(name: str) -> ModuleType:
    """Import ``name``, whose first part is the current directory's where it has one, unless the standard library has that name."""
    top = name.partition(".")[0]
    if top not in sys.modules and top not in sys.stdlib_module_names:
        spec = PathFinder.find_spec(top, [os.getcwd()])
        if spec is not None and spec.loader is not None:
            module = sys.modules[top] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[top]
                raise
    return importlib.import_module(name)
