"""One name, one thing: a class of the library is the only one of its name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "trimtab"


def test_no_two_classes_have_one_name() -> None:
    """Names that begin with an underscore are a module's own."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert len(found) > 300
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
