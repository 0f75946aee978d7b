"""Models made on demand: recipes by name, one making for all, keys by content; demonstrations that the tasks' own scorers judge."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from trimtab.config.load import load
from trimtab.lab import keys, warm
from trimtab.lab.demonstrations import SOURCES
from trimtab.lab.load import load as load_experiment
from trimtab.lab.runners import Work, switch, train
from trimtab.records import Json, TrimtabError
from trimtab.tasks.options import ReasoningGymOptions
from trimtab.tasks.reasoning import ReasoningGymScorer, ReasoningGymTask

PHASE: Json = {"steps": 1, "q": 0.0, "lr": 1e-3, "demonstrations": 2, "decay": False}
TINY: dict[str, Json] = {"hidden": 16, "layers": 1, "intermediate": 16, "phases": [PHASE]}


def options(**recipes: Json) -> dict[str, Json]:
    return {"models": dict(recipes)}


def test_other_models_are_left_alone() -> None:
    assert warm.recipe("package:quickstart", {}) is None
    assert warm.recipe("some/folder", options(a=TINY)) is None


@pytest.mark.parametrize(
    ("model", "given", "sentence"),
    [
        ("warm:b", options(a=TINY), "model = 'warm:b': options.models has no such recipe; there are a"),
        ("warm:b", {}, "there are none"),
        ("warm:a", options(a={"task": "chess"}), "options.models.a.task = 'chess'"),
        ("warm:a", options(a={"size": 3}), "options.models.a.size = 3"),
    ],
)
def test_refusals(model: str, given: dict[str, Json], sentence: str) -> None:
    with pytest.raises(TrimtabError, match=sentence):
        warm.recipe(model, given)


def test_a_key_has_the_recipe_it_names_and_no_other() -> None:
    config = load("quickstart", ["model=warm:a", "runtime.kind=lockstep"])
    one = keys.key(config, "train", options(a=TINY))
    assert one == keys.key(config, "train", options(a=TINY, b={"seed": 1}))
    assert one == keys.key(config.model_copy(update={"model": "warm:b"}), "train", options(b=TINY))
    assert one != keys.key(config, "train", options(a={**TINY, "seed": 1}))
    shipped = load("quickstart", ["runtime.kind=lockstep"])
    assert keys.key(shipped, "train", {}) == keys.key(shipped, "train", options(a=TINY))


def test_a_model_is_made_once_and_trained_from(tmp_path: Path) -> None:
    config = load("quickstart", ["model=warm:a", 'runtime={kind = "lockstep", lag = 1}', "learner.batches=2", "eval.prompts=4"])
    folders = []
    before: dict[str, Json] = {"learner": {"batches": 1}}
    for name, run, given in (("one", train, options(a=TINY)), ("two", switch, {**options(a=TINY), "before": before})):
        folder = tmp_path / "cells" / name
        folder.mkdir(parents=True)
        run(Work(config, given, folder), lambda batch: None)
        assert '"warm_s"' in (folder / "values.json").read_text()
        folders.append({p: p.stat().st_mtime_ns for p in (tmp_path / warm.FOLDER).rglob("*.safetensors")})
    assert folders[0] == folders[1]
    assert len(folders[0]) == 1


@pytest.mark.parametrize(("cell", "source"), [("sums", "chain_sum"), ("countdown", "countdown"), ("sorting", "number_sorting")])
def test_demonstrations_are_of_the_task(cell: str, source: str) -> None:
    """Prompts read like the task's; its scorer takes responses of that form."""
    loaded = load_experiment("tasks")
    name = next(c for c in loaded.experiment.cells() if c.arm == "sync" and c.at["task"] == cell)
    chosen = loaded.config(name, 0).task.model_copy(update={"size": 50, "eval_size": 4})
    assert isinstance(chosen, ReasoningGymOptions)
    task, scorer, drawn = ReasoningGymTask(chosen), ReasoningGymScorer(chosen).build(), SOURCES[source]
    prompts = {task.prompt(row).text: task.prompt(row) for row in range(50)}
    for text in prompts:
        assert set(text) <= set(drawn.characters)
    rng, lengths = random.Random(0), {len(text) for text in prompts}
    found = [drawn.draw(rng, 0.0) for _ in range(50)]
    assert {len(prompt) for prompt, _ in found} & lengths
    assert all(set(prompt + response) <= set(drawn.characters) for prompt, response in found)
    for prompt, response in found:
        assert response == answer_to(prompt, source) or (source == "countdown" and total(response) == total(answer_to(prompt, source)))
    for text, asked in list(prompts.items())[:10]:
        assert scorer.score(asked, answer_to(text, source)).score == 1.0
        assert scorer.score(asked, answer_to(text, source)[:-1]).score == 0.0


def total(signed: str) -> int:
    return sum(map(int, signed.replace("-", "+-").split("+")))


def answer_to(text: str, source: str) -> str:
    """The right response, by rule, in the form of the demonstrations."""
    if source == "chain_sum":
        terms = text.removesuffix("=").replace("-", "+-").split("+")
        return ",".join(str(sum(map(int, terms[: n + 1]))) for n in range(1, len(terms)))
    if source == "number_sorting":
        direction, _, rest = text.partition("[")
        numbers = [round(float(x.strip("'"))) for x in rest.split("]")[0].split(",")]
        return f"[{','.join(map(str, sorted(numbers, reverse=direction == 'descending')))}]"
    shown, _, target = text.removesuffix(":").partition("=")
    numbers = [int(x) for x in shown.strip("[]").split(",")]
    for signs in range(8):
        chosen = [1 if signs >> i & 1 else -1 for i in range(3)]
        if numbers[0] + sum(s * n for s, n in zip(chosen, numbers[1:], strict=True)) == int(target):
            return str(numbers[0]) + "".join(f"{'+' if s > 0 else '-'}{n}" for s, n in zip(chosen, numbers[1:], strict=True))
    raise AssertionError(f"{text} has no solution in its order")
