"""Every registered method says what a reader must know before using it."""

from __future__ import annotations

import pytest

from trimtab.control.registry import build, method_class, names


@pytest.mark.parametrize("name", names())
def test_a_method_says_what_it_is_costs_and_cannot_do(name: str) -> None:
    cls = method_class(name)
    assert cls.name == name
    lacking = [key for key in ("formula", "source", "summary", "cost", "fails") if not getattr(cls, key).strip()]
    assert lacking == [], f"{name} ({cls.__module__}) does not say: {', '.join(lacking)}"
    assert cls.__doc__
    assert "\n" not in cls.summary + cls.formula + cls.cost + cls.fails
    assert cls.fails.endswith("."), "one sentence"
    assert cls.points(), f"{name} acts nowhere"
    build(name, {})  # its defaults are valid
