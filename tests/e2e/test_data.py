"""The data of whole runs: what cannot be run is told once, a mixture resumes exactly, changed files are no silent matter."""

import json
from pathlib import Path

import pytest

from support import runs
from trimtab.config.run import RunConfig
from trimtab.records import Json, TrimtabError
from trimtab.runtime import run as running
from trimtab.runtime.session import Observer

BATCHES = 6
LOCKSTEP: dict[str, Json] = {"kind": "lockstep", "lag": 1}
LONG = {"prompt": "1+" * 200, "answer": ""}


def configure(folder: Path, batches: int = BATCHES, runtime: dict[str, Json] | None = None, **task: Json) -> RunConfig:
    config = runs.config(
        folder,
        ["vcpo"],
        runtime=runtime or LOCKSTEP,
        learner={"batches": batches, "optimizer": {"lr": runs.LR}},
        store={"every": 2},
        rollout={"prompts_per_batch": 2, "group_size": 4},
    )
    changes = {"path": None, **task} if "prompts" in task else task
    return config.model_copy(update={"task": type(config.task).model_validate(config.task.model_dump(mode="json") | changes)})


def logged(path: Path, level: str = "WARNING") -> list[str]:
    rows = [json.loads(line) for line in (path / "run.log").read_text().splitlines()]
    return [row["message"] for row in rows if row["level"] == level]


@pytest.mark.parametrize("kind", ["lockstep", "local"])
def test_long_rows_at_the_head_are_one_warning_and_nothing_else(tmp_path: Path, kind: str) -> None:
    config = configure(tmp_path, 2, LOCKSTEP if kind == "lockstep" else {"kind": "local", "max_lag": 1})
    file = tmp_path / "train.jsonl"
    file.write_text((json.dumps(LONG) + "\n") * 80 + file.read_text())
    summary = runs.train(config, tmp_path / "run")
    assert summary.status == "done"
    said = [message for message in logged(tmp_path / "run") if "rows" in message or "slot" in message]
    assert len(said) == 1
    assert said[0].startswith("80 of 180 training rows cannot be run and are set aside: the prompt of line 1 of ")
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [e["message"] for e in events if e["name"] == "data"] == said
    assert all(row >= 80 for row in {e.prompt for e in groups(tmp_path / "run")})


def groups(path: Path) -> list:
    from trimtab.store import rollout_log

    return [g for entry in rollout_log.read(path / "rollouts") for g in entry.groups]


def test_a_mixture_that_is_interrupted_is_the_one_that_is_not(tmp_path: Path) -> None:
    configure(tmp_path)
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"prompt": f"{i}-{i}=", "answer": ""}) + "\n" for i in range(3)))
    prompts: Json = [{"path": str(tmp_path / "train.jsonl"), "weight": 1}, {"path": str(tmp_path / "b.jsonl"), "weight": 3}]
    config = configure(tmp_path, prompts=prompts)
    runs.train(config, tmp_path / "whole")
    runs.train(config, tmp_path / "parted", runs.Interrupting(3))
    runs.resume(tmp_path / "parted")
    assert runs.digest_after(tmp_path / "whole", BATCHES) == runs.digest_after(tmp_path / "parted", BATCHES)
    assert runs.tokens(tmp_path / "whole") == runs.tokens(tmp_path / "parted")
    sources = [g.source for g in groups(tmp_path / "whole")]
    assert sources.count("b") > sources.count("train") > 0
    assert "b: 3 training rows, 74.8% of the prompts, each 25.67 times an epoch" in logged(tmp_path / "whole", "INFO")


def go_on(path: Path, observer: Observer, *, accept: bool) -> None:
    running.resume(path, [], observer, report=False, accept_changed_data=accept)


@pytest.mark.parametrize("changed", ["train.jsonl", "eval.jsonl"])
def test_a_resume_over_a_changed_file_is_refused_until_it_is_accepted(tmp_path: Path, changed: str) -> None:
    runs.train(configure(tmp_path), tmp_path / "run", runs.Interrupting(3))
    file = tmp_path / changed
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:-1], json.dumps({"prompt": "7+7=", "answer": ""})]) + "\n")
    field = "task.path" if changed == "train.jsonl" else "task.eval_path"
    with pytest.raises(TrimtabError) as error:
        go_on(tmp_path / "run", runs.Quiet(), accept=False)
    assert str(error.value).startswith(f"{field} = {str(file)!r}: it has changed since the checkpoint")
    assert "--accept-changed-data" in str(error.value)
    go_on(tmp_path / "run", runs.Interrupting(5), accept=True)
    assert any("is accepted as it is now" in message for message in logged(tmp_path / "run"))
    go_on(tmp_path / "run", runs.Quiet(), accept=False)  # it is the data of this run now
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "done"


def test_a_run_is_resumed_from_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = configure(Path())
    assert config.task.model_dump()["path"] == "train.jsonl"
    runs.train(config, tmp_path / "run", runs.Interrupting(3))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert runs.resume(tmp_path / "run").status == "done"


def test_a_worker_that_starts_after_the_file_has_changed_ends_the_run_and_says_why(tmp_path: Path) -> None:
    config = configure(tmp_path, 40, {"kind": "local", "max_lag": 1, "restarts": 3})
    file = tmp_path / "train.jsonl"

    class Changing(runs.Quiet):
        """Writes a new file and has the worker replaced."""

        def batch(self, record: object, waiting_for: str) -> None:
            import os
            import signal

            import psutil

            if record.batch == 1:
                new = tmp_path / "new.jsonl"
                new.write_text(file.read_text().replace("+", "-"))
                new.rename(file)
                for child in psutil.Process().children():
                    if "trimtab.rollout.worker" in child.cmdline():
                        os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(TrimtabError, match=r"task\.path = .*train\.jsonl': it has changed since the run began"):
        runs.train(config, tmp_path / "run", Changing())


def test_a_stop_string_ends_responses_in_a_run_and_its_replay_is_identical(tmp_path: Path) -> None:
    from trimtab.records import StopReason
    from trimtab.runtime.replay import replay

    config = configure(tmp_path, 3, keep_stop=True)
    stops = ("6", "8-", "9")
    more = {"stop": stops, "max_new_tokens": 24, "prompts_per_batch": 8, "group_size": 8}
    runs.train(config.model_copy(update={"rollout": config.rollout.model_copy(update=more)}), tmp_path / "run")
    chars = "0123456789+-=,"
    stopped = 0
    for said in (r for g in groups(tmp_path / "run") for r in g.rollouts):
        (s,) = said.segments
        text = "".join(chars[i - 3] for i in s.tokens[s.action_mask].tolist() if i > 2)
        ends = [at + len(stop) for stop in stops if (at := text.find(stop)) >= 0]
        assert (said.stop is StopReason.STOP) == bool(ends), text
        assert not ends or min(ends) == len(text), "the tokens of the stop string are actions, and nothing follows them"
        stopped += bool(ends)
    assert stopped > 10
    assert replay(tmp_path / "run", None).same
