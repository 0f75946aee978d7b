"""Does selection let go of something else than it keeps? Two windows, a two-sample rule.

The last 256 groups trained on and the last 256 that selection let go are compared by length, score and accuracy (the group's share of
correct members: its difficulty). With at least 64 groups in each, a column *drifts* where the difference of its means is

    |m_let_go - m_trained|  >  4 sqrt(s_let_go^2 / n + s_trained^2 / n)      clearly there (Welch), and
                            >  0.2 sqrt((s_let_go^2 + s_trained^2) / 2)      large enough to matter (Cohen's small effect)

and has stopped drifting where it is below half of either. Neighboring batches resemble each other, so 4 is no exact significance.
"""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from trimtab.control.protocol import Notes
from trimtab.pool.measure import MeasuredGroup
from trimtab.pool.results import LetGo
from trimtab.records import Decision

WINDOW, LEAST, CLEAR, LARGE = 256, 64, 4.0, 0.2
COLUMNS = ("length", "score", "accuracy")

Row = tuple[float, float, float]


class BiasState(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    trained: list[Row] = []
    let_go: list[Row] = []
    drifting: list[str] = []


class Bias:
    """Fed once a batch. One decision where a column begins to drift, one where it stops."""

    def __init__(self, saved: BiasState | None = None) -> None:
        saved = saved or BiasState()
        self._trained, self._let_go = deque(saved.trained, WINDOW), deque(saved.let_go, WINDOW)
        self.drifting = list(saved.drifting)

    def feed(self, trained: Iterable[Row], let_go: Iterable[Row]) -> list[Decision]:
        self._trained.extend(trained)
        self._let_go.extend(let_go)
        if min(len(self._trained), len(self._let_go)) < LEAST:
            return []
        kept, gone = np.array(self._trained), np.array(self._let_go)
        mean, variance = (kept.mean(0), gone.mean(0)), (kept.var(0, ddof=1), gone.var(0, ddof=1))
        off = np.abs(mean[0] - mean[1])
        limit = np.maximum(
            CLEAR * np.sqrt(variance[0] / len(kept) + variance[1] / len(gone)), LARGE * np.sqrt((variance[0] + variance[1]) / 2)
        )
        decisions = []
        for i, column in enumerate(COLUMNS):
            began = column not in self.drifting and off[i] > limit[i]
            ended = column in self.drifting and off[i] <= limit[i] / 2
            if began or ended:
                (self.drifting.append if began else self.drifting.remove)(column)
                why = f"mean {column} of the last {len(gone)} groups let go is {mean[1][i]:.3g}, of those trained on {mean[0][i]:.3g}"
                what = f"{column} drifts" if began else f"{column} drifts no more"
                decisions.append(Decision(method="pool", point="select", what=what, amount=float(mean[1][i] - mean[0][i]), why=why))
        return decisions

    def compare(self, trained: Sequence[MeasuredGroup], let_go: Sequence[LetGo], notes: Notes) -> None:
        """Feed a batch; note what was let go since the one before, and what begins or stops to drift."""
        notes.metric("pool/let_go", len(let_go))
        for column in COLUMNS if let_go else ():
            notes.metric(f"pool/let_go_{column}", sum(float(getattr(g, column)) for g in let_go), len(let_go))
        for decision in self.feed(*([(g.length, g.score, g.accuracy) for g in groups] for groups in (trained, let_go))):
            notes.note(decision)

    def state(self) -> BiasState:
        return BiasState(trained=list(self._trained), let_go=list(self._let_go), drifting=self.drifting)
