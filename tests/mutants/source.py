"""Find a function wherever it stands, and break one place of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from .mutant import Mutant

Function = ast.FunctionDef | ast.AsyncFunctionDef
BODIES = ("body", "orelse", "finalbody")


class Sources:
    """The functions of all modules below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def mutated(self, mutant: Mutant) -> tuple[Path, str]:
        """The file that the mutant is about, and its text with the mutant in it; :class:`ValueError` where that is not one place."""
        path, function = self._find(mutant)
        places = list(_places(function, mutant))
        if len(places) != 1:
            raise ValueError(f"{mutant.name}: its code stands {len(places)} times in {mutant.where}, once is wanted")
        return path, _replace(path.read_text(), *places[0])

    def _find(self, mutant: Mutant) -> tuple[Path, Function]:
        module, _, name = mutant.where.rpartition(":")
        found = [(path, function) for path, function in self._functions.get(name, []) if not module or path.stem == module]
        if len(found) != 1:
            where = ", ".join(str(path.relative_to(self.root)) for path, _ in found) or "nowhere"
            raise ValueError(f"{mutant.name}: {mutant.where} must be one function, it stands in: {where}")
        return found[0]

    @cached_property
    def _functions(self) -> dict[str, list[tuple[Path, Function]]]:
        found: dict[str, list[tuple[Path, Function]]] = {}
        for path in sorted(self.root.rglob("*.py")):
            for name, function in _functions(ast.parse(path.read_text()), ()):
                found.setdefault(name, []).append((path, function))
        return found


def _functions(node: ast.AST, above: tuple[str, ...]) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not isinstance(child, ast.ClassDef):
                yield ".".join((*above, child.name)), child
            yield from _functions(child, (*above, child.name))
        else:
            yield from _functions(child, above)


def _places(function: Function, mutant: Mutant) -> Iterator[tuple[ast.stmt | ast.expr, ast.stmt | ast.expr, str]]:
    """First and last node of every place where the mutant's code stands, and what replaces it."""
    before, after = ast.parse(mutant.before).body, ast.parse(mutant.after).body
    old, new = (code[0].value if len(code) == 1 and isinstance(code[0], ast.Expr) else None for code in (before, after))
    if old is not None and new is not None:
        wanted = ast.dump(old)
        yield from (
            (node, node, f"({ast.unparse(new)})") for node in ast.walk(function) if isinstance(node, ast.expr) and ast.dump(node) == wanted
        )
        return
    text = "\n".join(ast.unparse(statement) for statement in after) or "pass"
    wanted = [ast.dump(statement) for statement in before]
    for node in ast.walk(function):
        for body in (getattr(node, name, None) for name in BODIES):
            if isinstance(body, list):
                windows = (body[i : i + len(wanted)] for i in range(len(body) - len(wanted) + 1))
                yield from ((w[0], w[-1], text) for w in windows if [ast.dump(statement) for statement in w] == wanted)


def _replace(text: str, first: ast.stmt | ast.expr, last: ast.stmt | ast.expr, by: str) -> str:
    """Offsets of the parser are bytes of UTF-8. Every later line of ``by`` is indented as its first one is."""
    assert last.end_lineno is not None
    assert last.end_col_offset is not None
    lines = text.encode().splitlines(keepends=True)
    begin = sum(map(len, lines[: first.lineno - 1])) + first.col_offset
    end = sum(map(len, lines[: last.end_lineno - 1])) + last.end_col_offset
    broken = by.replace("\n", "\n" + " " * first.col_offset) if isinstance(first, ast.stmt) else by
    return (text.encode()[:begin] + broken.encode() + text.encode()[end:]).decode()
