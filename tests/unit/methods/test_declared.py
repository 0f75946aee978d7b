"""A control point is declared by a base class: what a class declares and what it defines are compared when it is made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from trimtab.control import protocol
from trimtab.control.protocol import (
    AcceptMethod,
    AligningMethod,
    CreditMethod,
    GradientMethod,
    Method,
    NormCreditMethod,
    ObjectiveMethod,
    Point,
    SelectMethod,
    ShapeMethod,
    StepMethod,
    SurveyMethod,
    TermMethod,
    WeighMethod,
)
from trimtab.control.registry import method_class, names
from trimtab.records import TrimtabError

FUNCTION = {
    AcceptMethod: ("accept", Point.ACCEPT),
    SelectMethod: ("select", Point.SELECT),
    ShapeMethod: ("shape", Point.SHAPE),
    WeighMethod: ("weigh", Point.WEIGH),
    CreditMethod: ("credit", Point.CREDIT),
    ObjectiveMethod: ("objective", Point.OBJECTIVE),
    TermMethod: ("objective", Point.OBJECTIVE),
    GradientMethod: ("gradient", Point.GRADIENT),
    AligningMethod: ("gradient", Point.GRADIENT),
    StepMethod: ("step", Point.STEP),
}
OWNERS = {SelectMethod, CreditMethod, ObjectiveMethod}


def answer(*_: object) -> None:
    """What a point function could be."""


def make(*bases: type, **defined: Callable[..., Any]) -> type[Method]:
    return type("Mine", bases, defined)


@pytest.mark.parametrize("base", FUNCTION, ids=lambda base: base.__name__)
def test_a_declared_point_must_have_its_function(base: type[Method]) -> None:
    function, point = FUNCTION[base]
    with pytest.raises(TrimtabError, match=rf"Mine inherits .*Method and lacks its function; define {function}\(\)"):
        make(base)
    made = make(base, **{function: answer})
    assert made.points() == (point,)
    assert made.functions() == (function,)
    assert made.owns() == ({point} if base in OWNERS else set())


@pytest.mark.parametrize("base", FUNCTION, ids=lambda base: base.__name__)
def test_a_function_must_have_its_point_declared(base: type[Method]) -> None:
    function, point = FUNCTION[base]
    other = StepMethod if point is not Point.STEP else WeighMethod
    with pytest.raises(TrimtabError, match=rf"Mine defines {function}\(\) and does not declare it; inherit .*Method"):
        make(other, **{FUNCTION[other][0]: answer, function: answer})


@pytest.mark.parametrize(
    ("bases", "defined", "said"),
    [
        ((Method,), (), "acts at no control point; inherit the base of one"),
        ((Method,), ("after",), "acts at no control point"),
        ((CreditMethod,), ("credit", "unit"), r"defines unit\(\) and does not declare it; inherit NormCreditMethod"),
        ((NormCreditMethod,), ("credit",), r"inherits NormCreditMethod and lacks its function; define unit\(\)"),
        ((NormCreditMethod,), ("unit",), r"inherits CreditMethod and lacks its function; define credit\(\)"),
        ((WeighMethod,), ("weigh", "survey"), r"defines survey\(\) and does not declare it; inherit SurveyMethod"),
        ((WeighMethod, SurveyMethod), ("weigh",), r"inherits SurveyMethod and lacks its function; define survey\(\)"),
        ((StepMethod, SurveyMethod), ("step", "survey"), "surveys the update for no point"),
        ((AcceptMethod,), ("accept", "formed"), r"defines formed\(\) and does not declare it; inherit SelectMethod"),
    ],
)
def test_what_does_not_agree_is_one_sentence(bases: tuple[type, ...], defined: tuple[str, ...], said: str) -> None:
    with pytest.raises(TrimtabError, match=said) as error:
        make(*bases, **dict.fromkeys(defined, answer))
    assert "\n" not in str(error.value)


def test_several_points_and_a_family_s_base() -> None:
    both = make(AcceptMethod, SelectMethod, accept=answer, select=answer)
    assert both.points() == (Point.ACCEPT, Point.SELECT)
    whole = make(CreditMethod, ObjectiveMethod, credit=answer, objective=answer)
    assert whole.owns() == {Point.CREDIT, Point.OBJECTIVE}

    class Family(WeighMethod, base=True):
        """No method yet."""

    assert make(Family, weigh=answer).points() == (Point.WEIGH,)
    with pytest.raises(TrimtabError, match=r"define weigh\(\)"):
        make(Family)
    assert make(make(StepMethod, step=answer)).functions() == ("step",)  # a method's variant inherits its functions


@pytest.mark.parametrize("name", names())
def test_what_the_chain_calls_is_the_methods_own(name: str) -> None:
    """No function of a base, which only refuses, is left where the chain would call it."""
    cls = method_class(name)
    assert cls.functions()
    for function in cls.functions():
        owner = next(c for c in cls.__mro__ if function in vars(c))
        assert owner.__module__ != Method.__module__, (name, function)


def test_one_import_serves_a_method_of_your_own_and_loads_no_torch() -> None:
    code = "import sys; from trimtab.control.protocol import *; assert 'torch' not in sys.modules and 'trimtab.methods' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    bases = {n for n, x in vars(protocol).items() if isinstance(x, type) and issubclass(x, Method)}
    assert bases <= set(protocol.__all__)
