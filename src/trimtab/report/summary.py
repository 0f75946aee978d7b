"""``summary.json``: what came out of a run, for people and scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from trimtab.records import TrimtabError

FILE = "summary.json"
Status = Literal["running", "done", "stopped", "interrupted", "failed"]


class Summary(BaseModel):
    """The object of ``summary.json``. Accuracies are held-out; None where the run was not evaluated (or not yet)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    accuracy_before: float | None = None
    accuracy_after: float | None = None
    batches: int  # consumed
    applied: int
    skipped: int
    max_age: int  # of any token trained on
    mean_age: float  # over tokens
    spanning_rollouts: int  # trained rollouts with tokens of two or more versions
    verdicts: dict[str, int] = {}  # responses asked about in training; errors and timeouts among them; lost, retried; groups given up
    moved_weights: float | None = None  # share of the published weights that an applied step changed, mean
    wall_s: float
    cpu_s: float  # learner, samplers and evaluator; the scorers' processes are apart
    methods: tuple[str, ...]
    seed: int
    status: Status
    reason: str = ""  # why it stopped, where it did

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
