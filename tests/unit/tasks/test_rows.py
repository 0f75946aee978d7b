"""Rows of data: what is no prompt is found when the file is read, wherever it stands; rows stay on disk; several files are one task."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trimtab.records import TrimtabError
from trimtab.tasks.load import load_task
from trimtab.tasks.options import JsonlOptions
from trimtab.tasks.protocol import Part

GOOD = {"prompt": "1+1=", "answer": "2"}
TALK = {"columns": {"messages": "m"}}


def write(path: Path, rows: list[object]) -> str:
    path.write_bytes(b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows))
    return str(path)


def goods(n: int) -> list[object]:
    return [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(n)]


def said(*roles: str) -> dict[str, object]:
    return {"m": [{"role": role, "content": "x"} for role in roles], "answer": "2"}


BAD = [
    ({"prompt": None, "answer": "2"}, {}, "line 3, column 'prompt': it is null, so there is no prompt"),
    ({"prompt": " \n", "answer": "2"}, {}, "line 3, column 'prompt': it is empty"),
    ({"prompt": "", "answer": "2"}, {"template": "Q: {prompt} A:"}, "line 3, column 'prompt': it is empty"),
    ({"prompt": ["a"], "answer": "2"}, {}, "line 3, column 'prompt': it is a JSON list, not text; a conversation goes into task.columns."),
    ({"prompt": {"a": 1}, "answer": "2"}, {}, "line 3, column 'prompt': it is a JSON dict, not text"),
    ({"prompt": True, "answer": "2"}, {}, "line 3, column 'prompt': it is true, not text"),
    ({"prompt": "1", "answer": None}, {}, "line 3, column 'answer': it is empty, and task.reward = \"exact\" has nothing to compare"),
    ({"prompt": "1", "answer": "2", "hint": None}, {"template": "{prompt} {hint}"}, "line 3: the row's hint is null"),
    ({"prompt": "1", "answer": "2", "hint": {"x": None}}, {"template": "{prompt} {hint[x]}"}, "line 3: the row's hint[x] is null"),
    ({"prompt": "1", "answer": "2", "hint": None}, {"template": "{prompt} {hint}", "compact": True}, "line 3: the row's hint is null"),
    ({"prompt": "\ud800", "answer": "2"}, {}, r"line 3: it holds half a character (\ud800)"),
    (b"[" * 100_000, {}, "line 3 cannot be read as JSON ("),
    (b'{"prompt": ' + b"1" * 5000 + b', "answer": 2}', {}, "line 3 cannot be read as JSON ("),
    (b'{"prompt": "\xe9", "answer": "2"}', {}, "line 3 is not UTF-8 text (invalid continuation byte at byte 13)"),
    ("\ufeff1".encode("utf-16"), {}, "line 3 is UTF-16 text; save the file as UTF-8"),
    (said("user", "assistant"), TALK, "line 3, column 'm': the last message is the assistant's, so the prompt would hold an answer"),
    ({"m": None, "answer": "2"}, TALK, "line 3, column 'm': a conversation is a list of objects"),
    ({"m": [], "answer": "2"}, TALK, "line 3, column 'm': the conversation has no message of role user"),
    (said("system"), TALK, "line 3, column 'm': the conversation has no message of role user"),
    ({"m": [{"role": "user", "content": " "}], "answer": "2"}, TALK, "line 3, column 'm': the last message is empty"),
    ({"m": [{"role": "user", "content": None}], "answer": "2"}, TALK, "line 3, column 'm': a conversation is a list of objects"),
]


def good(i: int, options: dict[str, object]) -> dict[str, object]:
    return {"m": [{"role": "user", "content": str(i)}], "answer": "2"} if options is TALK else {**GOOD, "prompt": str(i), "hint": {"x": 1}}


@pytest.mark.parametrize(("row", "options", "says"), BAD)
def test_a_row_that_is_no_prompt_is_named_by_line_and_refused_or_set_aside(
    tmp_path: Path, row: object, options: dict[str, object], says: str
) -> None:
    path = write(tmp_path / "a.jsonl", [good(0, options), good(1, options), row, good(2, options), row, good(3, options)])
    with pytest.raises(TrimtabError) as error:
        load_task(JsonlOptions(path=path, eval_rows=1, **options))
    assert str(error.value).startswith(f"task.path = {path!r}: {says}")
    assert "; line 5" in str(error.value)
    assert str(error.value).endswith('(2 bad rows; mend them or set task.bad_rows = "set_aside")')
    task = load_task(JsonlOptions(path=path, eval_rows=1, bad_rows="set_aside", **options))
    assert len(task) + task.eval_size == 4
    (note,) = task.data.notes
    assert note.startswith(f"{path}: 2 bad rows are set aside, 4 are left: {says}")


def test_where_bad_rows_stand_changes_nothing_but_their_lines(tmp_path: Path) -> None:
    bad: list[object] = [{"prompt": None, "answer": ""}] * 80
    found = []
    for name, content in (("head", [*bad, *goods(20)]), ("end", [*goods(20), *bad]), ("none", goods(20))):
        task = load_task(JsonlOptions(path=write(tmp_path / f"{name}.jsonl", content), bad_rows="set_aside"))
        found.append([task.prompt(i).text for i in range(len(task))] + [task.eval_prompt(i).text for i in range(task.eval_size)])
    assert found[0] == found[1] == found[2]
    with pytest.raises(TrimtabError, match="none of its 80 rows can be used: line 1, column 'prompt': it is null"):
        load_task(JsonlOptions(path=write(tmp_path / "all.jsonl", bad), bad_rows="set_aside"))


def test_a_null_answer_is_no_fault_where_a_reward_of_ones_own_judges(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": str(i), "answer": None} for i in range(4)])
    assert load_task(JsonlOptions(path=path, reward="m:f", eval_rows=1)).prompt(0).answer == ""


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_rows(tmp_path: Path) -> None:
    text = "".join(json.dumps(row) + "\r\n" for row in goods(6))
    (tmp_path / "plain.jsonl").write_text("".join(json.dumps(row) + "\n" for row in goods(6)))
    (tmp_path / "marked.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode())
    tasks = [load_task(JsonlOptions(path=str(tmp_path / f"{name}.jsonl"), eval_rows=2)) for name in ("plain", "marked")]
    assert [tasks[0].prompt(i).data for i in range(4)] == [tasks[1].prompt(i).data for i in range(4)]


def test_rows_are_those_that_were_read_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    task = load_task(JsonlOptions(path=write(path, goods(6)), eval_rows=1))
    texts = [task.prompt(i).text for i in range(5)]
    write(tmp_path / "new.jsonl", goods(40)[20:])
    (tmp_path / "new.jsonl").rename(path)  # as an editor saves: another file under the name
    assert [task.prompt(i).text for i in range(5)] == texts
    task = load_task(JsonlOptions(path=str(path), eval_rows=1))
    path.write_text("".join(json.dumps({"prompt": "9+9=", "answer": "0"}) + "\n" for _ in range(20)))  # written into
    with pytest.raises(TrimtabError, match=r"task\.path = .*: line \d+ is not what it was at the start"):
        task.prompt(0)


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match="is no regular file"):
        load_task(JsonlOptions(path="/dev/null"))
    with pytest.raises(TrimtabError, match="is no regular file"):
        load_task(JsonlOptions(path=str(tmp_path)))


def test_several_files_are_one_task_in_their_order(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", goods(30))
    b = write(tmp_path / "b.jsonl", [{"prompt": f"{i}-1=", "answer": "0"} for i in range(50)])
    task = load_task(JsonlOptions(prompts=[{"path": a, "weight": 3}, {"path": b, "weight": 1}], eval_rows=16))
    assert task.name == "a+b"
    assert sum(part.rows for part in task.data.parts) == len(task) == 64
    sources = [task.prompt(i).source for i in range(64)]
    first, second = task.data.parts
    assert sources == ["a"] * first.rows + ["b"] * second.rows
    assert (first, second) == (Part("a", first.rows, 3.0), Part("b", second.rows, 1.0))
    held_out = [task.eval_prompt(i) for i in range(16)]
    assert {p.source for p in held_out[:8]} == {"a", "b"}, "the first held-out rows are of both files"
    assert {p.text for p in held_out}.isdisjoint(task.prompt(i).text for i in range(64))
    assert {field: name for field, (name, _) in task.data.digests.items()} == {"task.prompts.0.path": a, "task.prompts.1.path": b}


def test_the_fields_of_several_files(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.jsonl", goods(4)), write(tmp_path / "b.jsonl", [*goods(2), {"prompt": None}])
    with pytest.raises(TrimtabError, match=r"task\.prompts\.1\.path = .*: line 3 has no column 'answer'"):
        load_task(JsonlOptions(prompts=[{"path": a}, {"path": b}]))
    write(tmp_path / "b.jsonl", goods(2))
    with pytest.raises(TrimtabError, match=r"task\.prompts\.1\.path = .*: none of its rows is left to train on"):
        load_task(JsonlOptions(prompts=[{"path": a}, {"path": b}], eval_path=b))
    for options, says in [
        ({}, "task.path is missing"),
        ({"path": a, "prompts": [{"path": b}]}, "both name the prompts"),
        ({"prompts": [{"path": a}, {"path": a}]}, "names a file twice"),
        ({"prompts": [{"path": a, "weight": 1}, {"path": b}]}, "give every file a weight, or none"),
        ({"prompts": [{"path": a, "weight": 0}]}, "greater than 0"),
    ]:
        with pytest.raises(ValueError, match=says):
            JsonlOptions(**options)


MEASURE = """
import json, resource, sys
from trimtab.tasks.load import load_task
from trimtab.tasks.options import JsonlOptions
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
task = load_task(JsonlOptions(path=sys.argv[1], eval_rows=64))
texts = [task.prompt(i).text for i in range(0, len(task), 997)]
print(len(task), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_rows_stay_on_disk(tmp_path: Path) -> None:
    """30 MB of rows. Held as objects they took 3.4 times the file; an index takes 24 bytes a row."""
    path = tmp_path / "many.jsonl"
    filler = "x" * 500
    with path.open("w") as file:
        for i in range(50_000):
            file.write(json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1), "data": [filler, i]}) + "\n")
    out = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True).stdout
    rows, mib = out.split()
    assert int(rows) == 50_000 - 64
    assert float(mib) < 16, "the index, and what the allocator keeps"


def test_identities_of_held_out_rows_are_found_in_every_file(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.jsonl", goods(20)), write(tmp_path / "b.jsonl", goods(25)[5:])
    task = load_task(JsonlOptions(prompts=[{"path": a}, {"path": b}], eval_rows=10, seed=3))
    held_out = {task.eval_prompt(i).text for i in range(10)}
    texts = np.array([task.prompt(i).text for i in range(len(task))])
    assert held_out.isdisjoint(texts.tolist())
    repeated = 40 - 10 - len(task)
    assert repeated > 0
    assert f"{repeated} training rows repeat an evaluation prompt" in task.data.notes[0]
