"""The table of mutants cannot rot: its texts stand in the code, its tests exist, every invariant has one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mutants.mutant import INVARIANTS, Mutant
from mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.name for m in MUTANTS])
def test_its_text_stands_in_the_code_once_and_its_test_exists(mutant: Mutant) -> None:
    text = (ROOT / "src" / "trimtab" / mutant.file).read_text()
    assert text.count(mutant.before) == 1
    ast.parse(text.replace(mutant.before, mutant.after))
    file, _, name = mutant.test.partition("::")
    defined = {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)}
    assert name in defined


def test_every_invariant_has_a_mutant_and_every_mutant_a_name() -> None:
    assert {m.invariant for m in MUTANTS} == set(INVARIANTS) == set(range(11))
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
