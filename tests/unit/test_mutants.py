"""The table of mutants cannot rot: its code stands in the functions that it names, its tests exist, every invariant has one."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from mutants.mutant import INVARIANTS, Mutant
from mutants.source import Sources
from mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Sources(ROOT / "src" / "trimtab")


@cache
def defined_in(file: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.name for m in MUTANTS])
def test_its_code_stands_in_the_function_once_and_its_test_exists(mutant: Mutant) -> None:
    path, text = SOURCES.mutated(mutant)
    assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(path.read_text()))
    file, _, name = mutant.test.partition("::")
    assert name in defined_in(file)


def test_every_invariant_has_a_mutant_and_every_mutant_a_name() -> None:
    assert {m.invariant for m in MUTANTS} == set(INVARIANTS) == set(range(11))
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)


# ------------------------------------------------------------------------------------------------------------ a wall that moves

PLAIN = '''
class Valve:
    def flow(self, head: float) -> float:
        """Litres a second."""
        if head > self.most:  # never more
            raise ValueError("é", head)
        return self.area * (2.0 * head) ** 0.5
'''
MOVED = """
def make():
    class Other:
        def flow(self): return self.area * (2. * head) ** .5
    if True:
        class Valve:
            def flow(
                self, head
            ):
                if (
                    head  # of water
                    > self.most
                ):
                        raise ValueError('é', head)
                return (self.area
                        * (2. * head) ** .5)
"""


def mutant(before: str, after: str, where: str = "Valve.flow") -> Mutant:
    return Mutant(0, "a mutant", where, before, after, "")


def mutated(tmp_path: Path, text: str, m: Mutant) -> str:
    (tmp_path / "deep").mkdir(exist_ok=True)
    (tmp_path / "deep" / "valve.py").write_text(text)
    (tmp_path / "other.py").write_text("def flow(): return 2.0 * head\n")
    return Sources(tmp_path).mutated(m)[1]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("2.0 * head", "2.0 + head"),
        ("head > self.most", "head >= self.most"),
        ("raise ValueError('é', head)", ""),
        ("raise ValueError('é', head)", "self.n += 1\nraise ValueError('é', head)"),
        ("return self.area * (2.0 * head) ** 0.5", "if head:\n    return 0.0\nreturn self.area"),
    ],
)
def test_a_mutant_is_the_same_wherever_its_function_stands_and_however_it_is_written(tmp_path: Path, before: str, after: str) -> None:
    plain = PLAIN.replace('"é"', "'é'")
    depth = " " * (12 if before.startswith("raise") else 8)
    want = ast.parse(plain.replace(before, after.replace("\n", "\n" + depth) or "pass")).body[0]
    assert ast.dump(ast.parse(mutated(tmp_path, PLAIN, mutant(before, after)))) == ast.dump(ast.Module([want], []))
    where = "make.Valve.flow"
    moved = ast.parse(mutated(tmp_path, MOVED, mutant(before, after, where)))
    (flow,) = [f for c in ast.walk(moved) if isinstance(c, ast.ClassDef) and c.name == "Valve" for f in c.body]
    assert isinstance(flow, ast.FunctionDef)
    assert isinstance(want, ast.ClassDef)
    assert isinstance(want.body[0], ast.FunctionDef)
    assert [ast.dump(s) for s in flow.body] == [ast.dump(s) for s in want.body[0].body[1:]]  # but for the docstring


def test_what_is_replaced_keeps_its_place_among_operators(tmp_path: Path) -> None:
    assert "self.area * ((a + b)) ** 0.5" in mutated(tmp_path, PLAIN, mutant("2.0 * head", "a + b"))


@pytest.mark.parametrize(
    ("m", "says"),
    [
        (mutant("3.0 * head", "head"), "stands 0 times in Valve.flow"),
        (mutant("head", "tail"), "stands 3 times in Valve.flow"),
        (mutant("head", "tail", "Valve.flood"), "must be one function, it stands in: nowhere"),
        (mutant("2.0 * head", "tail", "other:Valve.flow"), "must be one function, it stands in: nowhere"),
    ],
)
def test_code_that_is_not_there_once_is_an_error(tmp_path: Path, m: Mutant, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        mutated(tmp_path, PLAIN, m)


def test_the_module_tells_functions_of_one_name_apart(tmp_path: Path) -> None:
    text = "def flow(): return 2.0 * head\n"
    with pytest.raises(ValueError, match=r"it stands in: deep/valve.py, other.py"):
        mutated(tmp_path, text, mutant("2.0 * head", "head", "flow"))
    assert mutated(tmp_path, text, mutant("2.0 * head", "head", "valve:flow")) == "def flow(): return (head)\n"
