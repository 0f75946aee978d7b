"""Something a reader of the run should know: what, when, how bad, one sentence, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from trimtab.records import Json
from trimtab.telemetry.metrics import finite


class Severity(StrEnum):
    """``stop`` asks the runtime to end the run."""

    INFO = "info"
    WARN = "warn"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of ``events.jsonl``."""

    name: str
    severity: Severity
    batch: int
    message: str
    evidence: Mapping[str, float | int | str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        evidence: dict[str, Json] = {k: finite(v) if isinstance(v, float) else v for k, v in self.evidence.items()}
        return {"name": self.name, "severity": self.severity.value, "batch": self.batch, "message": self.message, "evidence": evidence}
