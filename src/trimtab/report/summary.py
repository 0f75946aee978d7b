"""``summary.json``: what came out of a run, for people and scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from trimtab.records import Json, TrimtabError
from trimtab.telemetry.held_out import HeldOut

FILE = "summary.json"
Count = Annotated[int, Field(le=2**53)]
Status = Literal["running", "done", "stopped", "interrupted", "failed"]


class Summary(BaseModel):
    """The object of ``summary.json``. Scores and accuracies are held-out; None where the run was not evaluated (or not yet).

    ``before`` and ``after`` are the whole evaluations, with n, intervals, errors and timeouts (the columns of ``eval.jsonl``), ``best``
    that of the model in ``best/``, with the ``batch`` it came after.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    accuracy_before: float | None = None
    accuracy_after: float | None = None
    score_before: float | None = None
    score_after: float | None = None
    before: dict[str, JsonValue] | None = None
    after: dict[str, JsonValue] | None = None
    best: dict[str, JsonValue] | None = None
    batches: Count  # consumed
    applied: Count
    skipped: Count
    max_age: Count  # of any token trained on
    mean_age: float  # over tokens
    spanning_rollouts: Count  # trained rollouts with tokens of two or more versions
    verdicts: dict[str, int] = {}  # responses asked about in training; errors and timeouts among them; lost, retried; groups given up
    moved_weights: float | None = None  # share of the published weights that an applied step changed, mean
    wall_s: float
    cpu_s: float  # learner, samplers and evaluator; the scorers' processes are apart
    methods: tuple[str, ...]
    seed: int
    status: Status
    reason: str = ""  # why it stopped, where it did

    @classmethod
    def evaluations(cls, before: HeldOut | None, after: HeldOut | None, best: tuple[int, HeldOut] | None) -> dict[str, JsonValue]:
        """The fields that tell of evaluations."""
        out: dict[str, JsonValue] = {}
        for name, found in (("before", before), ("after", after)):
            if found is not None:
                row = found.to_json()
                out |= {f"accuracy_{name}": row["accuracy"], f"score_{name}": row["score"], name: row}
        return out if best is None else out | {"best": {"batch": best[0]} | best[1].to_json()}

    def evaluation(self, name: Literal["before", "after", "best"]) -> HeldOut | None:
        """An evaluation, read; a summary of before has only its accuracy."""
        row = {"before": self.before, "after": self.after, "best": self.best}[name]
        bare = {"before": self.accuracy_before, "after": self.accuracy_after, "best": None}[name]
        return HeldOut.from_json(cast("dict[str, Json]", row) if row is not None else {"accuracy": bare})

    def text(self) -> str:
        return self.model_dump_json(indent=2) + "\n"

    def write(self, folder: Path, write_atomic: Callable[[Path, bytes], None]) -> Path:
        """Write it into the run folder with the store's atomic writer; the path."""
        path = folder / FILE
        write_atomic(path, self.text().encode())
        return path

    @classmethod
    def read(cls, folder: Path) -> Summary:
        """Raises TrimtabError where the file is missing or not a summary."""
        path = folder / FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError as error:
            raise TrimtabError(f"{path} does not exist: the run has not ended, or this is not a run folder") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise TrimtabError(f"{path} is not a summary ({where}: {first['msg']}): restore it or let the run write it again") from error
