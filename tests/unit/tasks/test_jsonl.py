"""JSONL prompts: the column map, the split, and what is said about bad files."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from trimtab.records import Outcome, TrimtabError
from trimtab.tasks.load import load_task, scorer_spec
from trimtab.tasks.options import JsonlOptions
from trimtab.tasks.verifier_process import judge


def write(path: Path, rows: list[object]) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def rows(n: int) -> list[object]:
    return [{"question": f"{i}+1=", "target": i + 1, "level": i % 3} for i in range(n)]


MAP = {"prompt": "question", "answer": "target"}


def test_columns_templates_and_data(tmp_path: Path) -> None:
    path = write(tmp_path / "sums.jsonl", [*rows(40), ""])
    task = load_task(JsonlOptions(path=path, columns={**MAP, "source": "level"}, template="Level {level}: {prompt}", eval_rows=8))
    assert (task.name, len(task), task.eval_size) == ("sums", 32, 8)
    prompt = task.prompt(0)
    i = int(prompt.data["target"]) - 1
    assert (prompt.text, prompt.answer, prompt.source) == (f"Level {i % 3}: {i}+1=", str(i + 1), str(i % 3))
    assert [task.prompt(r).row for r in range(32)] == list(range(32))


def test_held_out_rows_are_disjoint_also_where_the_file_repeats_prompts(tmp_path: Path) -> None:
    options = JsonlOptions(path=write(tmp_path / "a.jsonl", rows(30) * 3), columns=MAP, eval_fraction=0.1)
    task = load_task(options)
    held_out = {task.eval_prompt(r).text for r in range(task.eval_size)}
    training = {task.prompt(r).text for r in range(len(task))}
    assert task.eval_size == 9
    assert held_out.isdisjoint(training)
    assert len(held_out | training) == 30
    again = load_task(options)
    assert [again.eval_prompt(r).text for r in range(9)] == [task.eval_prompt(r).text for r in range(9)]
    other = load_task(options.model_copy(update={"seed": 1}))
    assert [other.eval_prompt(r).text for r in range(9)] != [task.eval_prompt(r).text for r in range(9)]


def test_eval_path_is_taken_whole(tmp_path: Path) -> None:
    train, test = write(tmp_path / "train.jsonl", rows(10)), write(tmp_path / "test.jsonl", rows(12)[8:])
    task = load_task(JsonlOptions(path=train, eval_path=test, columns=MAP))
    assert (len(task), task.eval_size) == (8, 4), "the two training rows that repeat evaluation prompts are left out"


def test_messages_column(tmp_path: Path) -> None:
    talk = [{"role": "system", "content": "s"}, {"role": "user", "content": "2+2?"}]
    path = write(tmp_path / "a.jsonl", [{"talk": talk, "answer": "4"}, {"talk": [*talk, {"role": "user", "content": "x"}], "answer": "4"}])
    task = load_task(JsonlOptions(path=path, columns={"messages": "talk"}, eval_rows=1))
    prompts = [task.prompt(0), task.eval_prompt(0)]
    assert {p.text for p in prompts} == {"2+2?", "x"}
    assert all(p.messages[0] == talk[0] for p in prompts)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "task.path = '{path}': has no rows"),
        (["", "  "], "task.path = '{path}': has no rows"),
        (
            [*rows(2), {"q": 1, "target": 2}],
            "line 3 has no column 'question' (it has q, target); set task.columns.prompt to the column of the prompt",
        ),
        ([{"question": "1"}], "line 1 has no column 'target' (it has question); set task.columns.answer"),
        ([*rows(1), "{'a': 1}"], "line 2 is not JSON ("),
        ([*rows(1), "[1]"], "line 2 is a JSON list, not an object"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, content: list[object], said: str) -> None:
    path = write(tmp_path / "bad.jsonl", content)
    with pytest.raises(TrimtabError) as error:
        load_task(JsonlOptions(path=path, columns=MAP))
    assert said.replace("{path}", path) in str(error.value)
    assert path in str(error.value)


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match=r"task.path = .*absent.jsonl': cannot be read \(No such file"):
        load_task(JsonlOptions(path=str(tmp_path / "absent.jsonl")))
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9", "answer": "1"}\n')
    with pytest.raises(TrimtabError, match="is not UTF-8 text"):
        load_task(JsonlOptions(path=str(tmp_path / "latin.jsonl")))
    few = write(tmp_path / "few.jsonl", rows(3))
    with pytest.raises(TrimtabError, match=r"task.eval_rows = 3: .* has 3 rows, so nothing is left to train on"):
        load_task(JsonlOptions(path=few, columns=MAP, eval_rows=3))
    with pytest.raises(TrimtabError, match="every row repeats an evaluation prompt"):
        load_task(JsonlOptions(path=few, columns=MAP, eval_path=few))
    with pytest.raises(TrimtabError, match=r"line 1: task.template = '\{hint\}': the row has no field 'hint'"):
        load_task(JsonlOptions(path=few, columns=MAP, template="{hint}"))
    bad_talk = write(tmp_path / "talk.jsonl", [{"m": [{"role": "user"}], "answer": ""}])
    with pytest.raises(TrimtabError, match="line 1, column 'm': a conversation is a list of objects with the strings role and content"):
        load_task(JsonlOptions(path=bad_talk, columns={"messages": "m"}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reward": "my_module.f"}, 'must be "exact" or "module:function"'),
        ({"eval_path": "b", "eval_rows": 3}, "leave out task.eval_rows"),
        ({"columns": {"messages": "m"}, "template": "x"}, "leave out task.template"),
        ({"columns": {"answer": None}}, "set task.columns.answer"),
        ({"reward": "m:f", "answer_after": "="}, "a reward function sees the whole response"),
        ({"system": "x"}, "needs task.chat = true"),
        ({"colums": {}}, "Extra inputs are not permitted"),
    ],
)
def test_options_that_clash(options: dict, said: str) -> None:
    with pytest.raises(ValidationError) as error:
        JsonlOptions(path="a", **options)
    assert said in str(error.value)


@pytest.mark.parametrize("options", [{"eval_path": "b"}, {"eval_rows": 3}, {"columns": {"messages": "m"}}, {"chat": True, "system": "x"}])
def test_options_with_every_default_written_out_are_the_same_options(options: dict) -> None:
    resolved = JsonlOptions(path="a", **options)
    assert JsonlOptions.model_validate(resolved.model_dump(mode="json")) == resolved


def test_exact_match(tmp_path: Path) -> None:
    options = JsonlOptions(path=write(tmp_path / "a.jsonl", rows(4)), columns=MAP, eval_rows=1, answer_after="=")
    prompt, scorer = load_task(options).prompt(0), scorer_spec(options).build()
    assert judge(scorer, prompt, f" so = {prompt.answer} ").outcome is Outcome.CORRECT
    assert judge(scorer, prompt, f"= {prompt.answer}0").outcome is Outcome.WRONG
    assert judge(scorer, prompt, "=").outcome is Outcome.UNPARSEABLE


@pytest.mark.parametrize(
    "options",
    [
        {"eval_path": "b"},
        {"columns": {"messages": "m"}, "reward": "m:f"},
        {"columns": {"answer": None}, "reward": "m:f"},
        {"chat": True, "system": "s", "answer_after": "="},
    ],
)
def test_resolved_options_load_again(options: dict) -> None:
    """A run folder keeps every field, defaults included."""
    resolved = JsonlOptions(path="a", **options)
    assert JsonlOptions.model_validate(resolved.model_dump()) == resolved
