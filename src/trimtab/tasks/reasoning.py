"""reasoning-gym families by name. The library takes a second to import, so it is imported when a task is loaded.

A family's entry i is generated from Random(seed + i). Training rows start at a hash of the task's seed below 2**30, evaluation
rows at ``EVAL_SEED``, the same for every seed. That keeps the generators apart; small families still repeat a question, so a
training row whose prompt is also an evaluation prompt takes another entry: the two sets of prompts are disjoint.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, cast

from trimtab import keyed
from trimtab.records import Json, Outcome, TrimtabError
from trimtab.tasks.options import EVAL_SEED, ReasoningGymOptions
from trimtab.tasks.protocol import DataRead, Part, Prompt, Scorer, Verdict
from trimtab.tasks.template import answer_part, fill, messages

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

_REDRAWS = 16  # entries tried for a training row
_PROBED = 4  # rows rendered at load, so that a bad template or a family without enough prompts shows there
_SCORING_SIZE = 64  # scorers need the family's settings, not its entries


class ReasoningGymTask:
    """Prompts of one family. Raises TrimtabError for an unknown family, a setting it lacks or refuses, and a bad template."""

    def __init__(self, options: ReasoningGymOptions) -> None:
        self.name = options.name
        self.eval_size = options.eval_size
        self._options = options
        self._training = build(options, int(keyed.fold(keyed.ORDER, options.seed)) % 2**30, options.size)
        self._evaluation = build(options, EVAL_SEED, options.eval_size)
        probed = [self.prompt(row) for row in range(min(options.size, _PROBED))]
        probed += [self.eval_prompt(row) for row in range(min(options.eval_size, _PROBED))]
        # what a row is depends on the library's version, too
        said = json.dumps([(p.text, p.answer) for p in probed]).encode()
        self.data = DataRead(
            digests={"task.name": (options.name, hashlib.blake2b(said, digest_size=16).hexdigest())},
            parts=(Part(options.name, options.size),),
        )

    def __len__(self) -> int:
        return self._options.size

    def prompt(self, row: int) -> Prompt:
        index = row
        for draw in range(_REDRAWS):
            prompt = self._prompt(row, self._training[index])
            if prompt.text not in self._evaluation_texts:
                return prompt
            index = int(keyed.fold(keyed.ORDER, self._options.seed, row, draw)) % len(self)
        raise TrimtabError.field(
            "task.eval_size",
            self.eval_size,
            f"{self.name} has so few distinct prompts that training row {row} found none outside evaluation",
        )

    def eval_prompt(self, row: int) -> Prompt:
        return self._prompt(row, self._evaluation[row])

    @cached_property
    def _evaluation_texts(self) -> frozenset[str]:
        return frozenset(self.eval_prompt(row).text for row in range(self.eval_size))

    def _prompt(self, row: int, entry: Mapping[str, Json]) -> Prompt:
        o = self._options
        metadata = cast(Mapping[str, Json], entry["metadata"])
        text = fill(o.template, {**metadata, "question": entry["question"]}, o.compact)
        answer = "" if entry["answer"] is None else str(entry["answer"])
        return Prompt(
            row=row, text=text, answer=answer, source=f"reasoning_gym/{o.name}", data=entry, messages=messages(text, o.chat, o.system)
        )


def build(options: ReasoningGymOptions, seed: int, size: int) -> ProceduralDataset:
    """The family's dataset; TrimtabError naming the family or the setting where it cannot be built."""
    options.require_extra()
    from reasoning_gym.factory import DATASETS, create_dataset

    if options.name not in DATASETS:
        near = ", ".join(difflib.get_close_matches(options.name, DATASETS, n=3)) or f"one of {len(DATASETS)} families, such as chain_sum"
        raise TrimtabError.field("task.name", options.name, f"no such reasoning-gym family; did you mean {near}?")
    known = {f.name for f in fields(DATASETS[options.name][1])} - {"seed", "size"}
    for key in options.config:
        if key in ("seed", "size"):
            raise TrimtabError.field(f"task.config.{key}", options.config[key], f"set task.{key} instead")
        if key not in known:
            raise TrimtabError(f"task.config.{key}: {options.name} has no such setting; it has {', '.join(sorted(known))}")
    try:
        return create_dataset(options.name, seed=seed, size=size, **options.config)
    except Exception as error:  # the families validate with assert, ValueError and TypeError alike
        raise TrimtabError(f"task.config = {options.config}: {options.name} refuses it ({error or type(error).__name__})") from error


@dataclass(frozen=True, slots=True)
class ReasoningGymScorer:
    """Scores with the family's own scorer; also its own specification, since only options need to reach the verifier process."""

    options: ReasoningGymOptions

    @property
    def name(self) -> str:
        return f"reasoning_gym/{self.options.name}"

    def build(self) -> Scorer:
        return _FamilyScorer(self.options)


class _FamilyScorer:
    """Threshold over the family's score: it may give partial credit to wrong answers and raise on junk.

    ``UNPARSEABLE``: the answer part is empty, has no digit where the reference has one, or makes the scorer raise although the
    reference answer does not. A scorer that raises on its own reference answer is broken: that exception goes on, and is an error.
    """

    def __init__(self, options: ReasoningGymOptions) -> None:
        self._options = options
        self._dataset = build(options, EVAL_SEED, _SCORING_SIZE)

    def score(self, prompt: Prompt, response: str) -> Verdict:
        answer = answer_part(response, self._options.answer_after)
        if not answer:
            return Verdict(score=0.0, outcome=Outcome.UNPARSEABLE, detail="no answer")
        try:
            raw = float(self._dataset.score_answer(answer, prompt.data))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - the families raise whatever their parsing raises
            self._dataset.score_answer(prompt.data["answer"], prompt.data)
            return Verdict(score=0.0, outcome=Outcome.UNPARSEABLE, detail=f"the scorer cannot read it ({type(error).__name__}: {error})")
        if raw >= self._options.threshold:
            outcome = Outcome.CORRECT
        elif _digit(prompt.answer) and not _digit(answer):
            outcome = Outcome.UNPARSEABLE
        else:
            outcome = Outcome.WRONG
        partial = raw if self._options.partial else float(outcome is Outcome.CORRECT)
        return Verdict(score=partial, outcome=outcome, detail=f"{answer!r} scored {raw:g}")


def _digit(text: str) -> bool:
    return any(c.isdigit() for c in text)
