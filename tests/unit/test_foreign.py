"""Text from outside: what a person sees of it, and what reading it may raise."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from trimtab import foreign
from trimtab.foreign import mathtext, parse_json, parse_toml, printable, printable_lines, shown
from trimtab.records import TrimtabError


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("runs/quickstart", "runs/quickstart"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("two\nlines\r", r"two\nlines\r"),
        ("exe\u202egpj", r"exe\u202egpj"),
        ("\x9b31m", r"\x9b31m"),
        ("lone \udcff", r"lone \udcff"),
        ("a[red]b$c$", "a[red]b$c$"),
        ("Zürich 日本\u3000語 می\u200cخواهم 👩\u200d🔬", "Zürich 日本\u3000語 می\u200cخواهم 👩\u200d🔬"),
    ],
)
def test_what_a_terminal_would_obey_is_spelled_out(text: str, seen: str) -> None:
    assert printable(text) == seen


@given(st.text(), st.integers(4, 50))
def test_one_line_of_letters_whatever_it_was(text: str, limit: int) -> None:
    seen = printable(text, limit)
    assert all(c.isprintable() or c in "\u200c\u200d" or unicodedata.category(c) == "Zs" for c in seen)
    assert printable(seen, len(seen)) == seen
    assert len(seen) <= 10 * limit + 50


def test_of_long_text_both_ends_are_seen() -> None:
    seen = printable("beginning " + 5000 * "x" + " remedy", 100)
    assert seen.startswith("beginning xxx")
    assert seen.endswith("xxx remedy")
    assert "... (4,917 characters left out) ..." in seen


def test_lines_stay_lines() -> None:
    assert printable_lines("Traceback:\n\tline\x1b[31m 1\n") == "Traceback:\n\tline\\x1b[31m 1\n"


@pytest.mark.parametrize(
    ("value", "seen"),
    [("a'b", '"a\'b"'), (["a", 1], "['a', 1]"), ("\x1b", r"'\x1b'"), (1 << 20000, "(int too large to be shown)")],
    ids=["text", "list", "escape", "digits"],
)
def test_values_in_a_sentence(value: object, seen: str) -> None:
    assert shown(value) == seen


def test_the_remedy_outlives_a_long_value() -> None:
    said = str(TrimtabError.field("name", "x" * 100_000, "give a shorter one"))
    assert said.endswith(": give a shorter one")
    assert len(said) < 400


def test_dollars_are_no_formula() -> None:
    figure = Figure()
    figure.text(0.1, 0.1, mathtext(r"a $\frac{1}$ b"))
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    assert r"a $\frac{1}$ b" in buffer.getvalue()
    with pytest.raises(ValueError, match="frac"):
        Figure.text(figure, 0.1, 0.1, r"a $\frac{1}$ b").figure.savefig(io.StringIO(), format="svg")


DEEP = [200, 5_000, 100_000]


@pytest.mark.parametrize("levels", DEEP)
def test_nesting_without_end_is_no_recursion(levels: int) -> None:
    for text in (levels * "[" + levels * "]", levels * '{"a":' + "1" + levels * "}"):
        for data in (text, text.encode()):
            with pytest.raises(ValueError, match="nested more than 100 levels deep"):
                parse_json(data)
    for text in ("x = " + levels * "[" + levels * "]", "x" + min(levels, 900) * ".y" + " = 1"):
        with pytest.raises(ValueError, match="nested more than 100 levels deep"):
            parse_toml(text)


def test_numbers_of_thousands_of_digits() -> None:
    for read, text in ((parse_json, 5000 * "9"), (parse_toml, "x = " + 5000 * "9")):
        with pytest.raises(ValueError, match="4300 digits"):
            read(text)


def test_what_is_sound_is_read() -> None:
    flat = "[" + ",".join(200 * ["[]"]) + "]"
    assert parse_json(flat) == [[]] * 200
    assert parse_json(foreign.DEPTH * "[" + foreign.DEPTH * "]")
    assert parse_toml("a.b = [[1]]") == {"a": {"b": [[1]]}}
