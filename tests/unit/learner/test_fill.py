"""Columns of a view have one writer: no other module of the program sets one."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest
import torch

import trimtab
from support.views import make_view
from trimtab.control.protocol import View
from trimtab.learner.fill import differentiable, fill_kept, fill_leveled, fill_shaped, fill_start, start_columns
from trimtab.learner.kept import KeptColumns

COLUMNS = {f.name for f in dataclasses.fields(View)}
SOURCE = Path(trimtab.__file__).parent


def writes(path: Path) -> list[str]:
    """Where a module sets an attribute named like a column on anything but ``self`` and a Micro, or any attribute by a computed name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in COLUMNS:
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "host")):  # host: a Micro, of which group_R is a list
                found.append(f"{path.name}:{node.lineno} {ast.unparse(node)}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            found.append(f"{path.name}:{node.lineno} {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("room", ["learner", "methods", "control", "functional"])
def test_columns_are_written_in_fill_alone(room: str) -> None:
    assert [w for path in sorted((SOURCE / room).rglob("*.py")) if path.name != "fill.py" for w in writes(path)] == []


def test_the_search_finds_a_writer() -> None:
    assert {w.split()[1] for w in writes(SOURCE / "learner" / "fill.py")} >= {"view.current_N", "view.norm2_R", "view.reward_R"}


def plain() -> View:
    return make_view([1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1], [2, 1, 3, 0])


def test_the_batchs_start_is_found_again_by_place() -> None:
    first, columns = dataclasses.replace(plain(), proximal_N=None, reference_N=None, values_N=None, boot_R=None), KeptColumns()
    assert start_columns(first) == {}
    fill_start(first, proximal_N=torch.arange(6.0), values=(torch.arange(6.0) * 2, torch.arange(4.0)))
    assert set(start_columns(first)) == {"proximal_N", "values_N", "boot_R"}
    for name, x in start_columns(first).items():
        columns.put(name, x, [2, 1, 3, 0] if name.endswith("_N") else [1] * 4, [7, 5, 6, 8])
    later = dataclasses.replace(plain(), reference_N=torch.ones(6))
    fill_kept(later, columns, [5, 6])
    assert later.proximal_N is not None
    assert later.boot_R is not None
    assert later.proximal_N.tolist() == [2.0, 3.0, 4.0, 5.0]
    assert later.boot_R.tolist() == [1.0, 2.0]
    assert later.reference_N is None  # never put: not what some earlier view held


def test_shaped_rewards_reach_token_rollout_and_std() -> None:
    v = plain()
    fill_shaped(v, torch.tensor([0.5, 0.0, 0.0, -1.0, 0.0, 0.0]))
    fill_shaped(v, torch.tensor([0.5, 0.0, 0.0, 0.0, 0.0, 0.0]))
    assert v.reward_N is not None
    assert v.reward_N.tolist() == [1.0, 0.0, 0.0, -1.0, 0.0, 0.0]
    assert v.reward_R.tolist() == [2.0, 0.0, 0.0, 1.0]
    assert v.totals.reward_std == pytest.approx((11 / 12) ** 0.5)  # of 2, 0, 0, 1: mean 3/4, sum of squares 5 - 9/4
    v.reward_R = torch.tensor([1.0, 0.0, 0.3, 0.1 + 0.2], dtype=torch.float64)
    fill_leveled(v)
    assert v.reward_R.tolist() == [1.0, 0.0, 0.3, 0.3]


def test_the_objectives_view_is_left_as_it_was_also_by_an_error() -> None:
    v = plain()
    before = v.current_N

    def broken() -> None:
        with differentiable(v) as (leaf, entropy):
            assert v.current_N is leaf
            assert leaf.requires_grad
            assert (entropy is None) is (v.entropy_N is None)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert v.current_N is before
    assert before is not None
    assert not before.requires_grad
