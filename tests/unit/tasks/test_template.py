"""Templates fill what they say, and say what is missing."""

import pytest

from trimtab.records import TrimtabError
from trimtab.tasks.template import answer_part, fill, messages


def test_fill_from_a_row_and_compact() -> None:
    row = {"expression": "3 + 8 - 2", "n": 3, "nested": {"x": "a b"}}
    assert fill("{expression} =", row, compact=False) == "3 + 8 - 2 ="
    assert fill("{expression} = ", row, compact=True) == "3+8-2 = ", "only what is filled in is stripped, not the template"
    assert fill("{{{n}}}", row, compact=False) == "{3}"
    assert fill("{nested[x]}", row, compact=False) == "a b"


@pytest.mark.parametrize(("template", "said"), [("{expresion}=", "no field 'expresion'; it has expression, n"), ("{", "write {field}")])
def test_a_bad_template_is_one_sentence(template: str, said: str) -> None:
    with pytest.raises(TrimtabError, match=r"^task\.template = ") as error:
        fill(template, {"expression": "1", "n": 2}, compact=False)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("response", "after", "answer"),
    [("3,11,9", ",", "9"), ("9", ",", "9"), ("3,11,", ",", ""), (" 3,11 ", None, "3,11"), ("a ANSWER: b ANSWER: 7\n", "ANSWER:", "7")],
)
def test_the_answer_is_what_follows_the_last_separator(response: str, after: str | None, answer: str) -> None:
    assert answer_part(response, after) == answer


def test_messages_only_for_chat() -> None:
    assert messages("hi", chat=False, system=None) == ()
    assert messages("hi", chat=True, system="be brief") == ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"})
