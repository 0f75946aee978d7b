"""The files of ``examples/``, imported as they are where they stand."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    """Under its own name and from a folder on the path, so that a child process finds it, too."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(name)


def lines(name: str) -> int:
    return len((FOLDER / f"{name}.py").read_text().splitlines())


def needs(name: str) -> set[str]:
    """What it imports beside the standard library."""
    imports = [n for n in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())) if isinstance(n, ast.Import | ast.ImportFrom)]
    names = [n for i in imports for n in ([i.module or ""] if isinstance(i, ast.ImportFrom) else [a.name for a in i.names])]
    return {n.partition(".")[0] for n in names} - set(sys.stdlib_module_names)
