"""Rows that cannot be run are found wherever they stand, told once, and never drawn."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.rolling import AnyOrderEngine, NearVerifier, Sums
from support.tiny import bytes_tokenizer, tiny_tokenizer
from trimtab.records import Slot, TrimtabError
from trimtab.rollout.collector import Collector, GroupFailed
from trimtab.rollout.options import RolloutOptions
from trimtab.rollout.render import Renderer
from trimtab.rollout.screen import held_out, screen
from trimtab.runtime.data import look
from trimtab.tasks.jsonl import JsonlTask
from trimtab.tasks.options import JsonlOptions
from trimtab.tasks.protocol import DataRead, Part, Prompt

LONG = {"prompt": "1+" * 40, "answer": "1"}
ALIEN = {"prompt": "one", "answer": "1"}


def renderer(template: str | None = None) -> Renderer:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return Renderer(tokenizer, context=32, max_new_tokens=8, stop_ids=(2,))


def goods(n: int) -> list[dict[str, str]]:
    return [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(n)]


def task(folder: Path, rows: list[dict[str, str]], **options: object) -> JsonlTask:
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "eval.jsonl").write_text(json.dumps({"prompt": "9-9=", "answer": "0"}) + "\n")
    return JsonlTask(JsonlOptions(path=str(folder / "a.jsonl"), eval_path=str(folder / "eval.jsonl"), **options))


def test_where_long_rows_stand_changes_nothing_but_their_lines(tmp_path: Path) -> None:
    found = []
    for rows in ([LONG] * 80 + goods(20), goods(20) + [LONG] * 80, goods(20)):
        t = task(tmp_path, rows)
        seen = screen(t, renderer())
        found.append([t.prompt(int(row)).text for row in seen.rows])
        if len(rows) > 20:
            (note,) = seen.notes
            first = 1 if rows[0] is LONG else 21
            assert note.startswith(f"80 of 100 training rows cannot be run and are set aside: the prompt of line {first} of ")
            assert note.endswith("; and 77 more")
            assert "a.jsonl has 81 tokens; the context of 32 less rollout.max_new_tokens = 8 leaves 24" in note
        else:
            assert seen.notes == ()
    assert found[0] == found[1] == found[2] == [row["prompt"] for row in goods(20)]


def test_rows_without_a_token_and_rows_a_template_breaks_on_are_set_aside_alike(tmp_path: Path) -> None:
    seen = screen(task(tmp_path, [*goods(3), ALIEN, *goods(2)]), renderer())
    assert seen.rows.tolist() == [0, 1, 2, 4, 5]
    assert "line 4 of" in seen.notes[0]
    assert "holds text the tokenizer has no token for" in seen.notes[0]
    breaking = "{{ messages[0]['content'] }}{{ 1 // (0 if '2+' in messages[0]['content'] else 1) }}"
    seen = screen(task(tmp_path, goods(3), chat=True), renderer(breaking))
    assert seen.rows.tolist() == [0, 1]
    assert "line 3 of" in seen.notes[0]
    assert "ZeroDivisionError" in seen.notes[0]


def test_nothing_that_can_be_run_is_an_error_with_the_first_reason(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match=r"none of 5 training prompts can be run: the prompt of line 1 of .* has 81 tokens"):
        screen(task(tmp_path, [LONG] * 5), renderer())


def test_held_out_rows_are_the_first_that_can_be_run(tmp_path: Path) -> None:
    t = task(tmp_path, goods(3))
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [LONG, LONG, *goods(9)[5:]]))
    t = JsonlTask(JsonlOptions(path=str(tmp_path / "a.jsonl"), eval_path=str(tmp_path / "eval.jsonl")))
    seen = held_out(t, renderer(), 3)
    assert seen.rows.tolist() == [2, 3, 4]
    assert seen.notes[0].startswith("2 of 5 held-out rows cannot be run")
    assert held_out(t, renderer(), 99).rows.tolist() == [2, 3, 4, 5]


class MadeUp(Sums):
    """A task whose rows are made when they are asked for; some of them raise."""

    data = DataRead(digests={}, parts=(Part("sums", 100),))

    def prompt(self, row: int) -> Prompt:
        if row == 13:
            raise ZeroDivisionError("a family's bug")
        return super().prompt(row)


def test_rows_that_are_made_up_are_not_all_looked_at() -> None:
    wide = Renderer(tiny_tokenizer(), context=64, max_new_tokens=8, stop_ids=(2,))
    assert screen(MadeUp(), wide).rows.tolist() == list(range(100))


def test_whatever_a_row_raises_is_a_failed_group_that_is_not_retried() -> None:
    options = RolloutOptions(group_size=2, prompts_per_batch=2, max_new_tokens=8)
    wide = Renderer(tiny_tokenizer(), context=64, max_new_tokens=8, stop_ids=(2,))
    collector = Collector(AnyOrderEngine(), MadeUp(), NearVerifier(), wide, options, 0)
    collector.assign(Slot(0, 0), 13, 0)
    reason = "the prompt of row 13 cannot be rendered (ZeroDivisionError: a family's bug)"
    assert collector.step() == [GroupFailed(slot=Slot(0, 0), row=13, attempt=0, reason=reason, retry=False)]


def test_files_with_weights_are_told_and_mixed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*goods(10), LONG]))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"prompt": f"{i}-1=", "answer": "1"}) + "\n" for i in range(30)))
    (tmp_path / "eval.jsonl").write_text(json.dumps({"prompt": "9-9=", "answer": "0"}) + "\n")
    files = [{"path": str(tmp_path / "a.jsonl"), "weight": 1.0}, {"path": str(tmp_path / "b.jsonl"), "weight": 1.0}]
    t = JsonlTask(JsonlOptions(prompts=files, eval_path=str(tmp_path / "eval.jsonl")))
    data = look(t, renderer(), seed=0, evaluated=1)
    assert data.told == (
        "a: 10 training rows, 50.0% of the prompts, each 2.00 times an epoch",
        "b: 30 training rows, 50.0% of the prompts, each 0.67 times an epoch",
    )
    sources = [t.prompt(int(row)).source for row in data.order(0)]
    assert (sources.count("a"), sources.count("b")) == (20, 20)
    even = JsonlTask(JsonlOptions(prompts=[{"path": f["path"]} for f in files], eval_path=str(tmp_path / "eval.jsonl")))
    plain = look(even, renderer(), seed=0, evaluated=1)
    assert sorted(plain.order(0).tolist()) == [*range(10), *range(11, 41)]
    (tmp_path / "a.jsonl").write_text(json.dumps(LONG) + "\n")
    t = JsonlTask(JsonlOptions(prompts=files, eval_path=str(tmp_path / "eval.jsonl")))
    with pytest.raises(TrimtabError, match=r"task\.prompts = 'a': none of its 1 rows can be run"):
        look(t, renderer(), seed=0, evaluated=1)


def bytes_renderer(context: int, template: str | None = None) -> Renderer:
    tokenizer = bytes_tokenizer()
    tokenizer.chat_template = template
    return Renderer(tokenizer, context=context, max_new_tokens=8, stop_ids=(0,))


@settings(deadline=None, max_examples=100)
@given(text=st.text(max_size=30), context=st.integers(9, 120), chat=st.booleans())
def test_what_surely_fits_fits(text: str, context: int, chat: bool) -> None:
    r = bytes_renderer(context, "{{ messages[0]['content'] }}" if chat else None)
    talk = ({"role": "user", "content": text},) if chat else ()
    prompt = Prompt(row=0, text=text, answer="", source="", data={}, messages=talk)
    if r.surely_fits(prompt):
        assert 0 < len(r.ids(prompt)) <= context - 8


def test_most_rows_are_measured_without_their_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    r = bytes_renderer(80)
    measured = []
    real = r.ids
    monkeypatch.setattr(r, "ids", lambda prompt: measured.append(prompt.text) or real(prompt))
    long = {"prompt": "naïve 数字 " * 20, "answer": "1"}
    seen = screen(task(tmp_path, [*goods(5), long, *goods(5)]), r)
    assert len(seen.rows) == 10
    assert measured == [long["prompt"]]
    assert not renderer().surely_fits(Prompt(row=0, text="1", answer="", source="", data={})), "a tokenizer of words may know no token"
