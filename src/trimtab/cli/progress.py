"""Live progress of a run: a table that redraws on a terminal, a line every few batches elsewhere."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from trimtab.config.run import RunConfig
from trimtab.foreign import printable
from trimtab.telemetry.events import Event
from trimtab.telemetry.held_out import HeldOut
from trimtab.telemetry.metrics import BatchRecord
from trimtab.telemetry.reducers import Rate

WINDOW = 10  # batches averaged in what is shown
QUIET_EVERY = 20  # batches between two lines where there is no terminal
SHOWN = (
    ("reward", "reward/mean", "{:.3f}"),
    ("accuracy", "accuracy/train", "{:.3f}"),
    ("ESS/B", "ess/ratio", "{:.2f}"),
    ("KL", "kl/k3", "{:.4f}"),
    ("cosine", "grad/cosine", "{:+.2f}"),
    ("grad norm", "grad/raw_norm", "{:.3f}"),
    ("step x", "step/multiplier", "{:.2f}"),
    ("moved", "step/moved", "{:.1%}"),
    ("age", "age/mean", "{:.1f}"),
    ("oldest", "age/max", "{:.0f}"),
    ("tokens/s", "throughput/tokens_per_s", "{:,.0f}"),
)


class Progress:
    """An observer of the session, and the context it is shown in. Silent until the run has begun: what cannot begin is one sentence."""

    def __init__(self, config: RunConfig, path: Path, quiet: bool = False) -> None:
        self._config, self._path = config, path
        self._console = Console(stderr=True, quiet=quiet)
        self._recent: deque[BatchRecord] = deque(maxlen=WINDOW)
        self._waiting, self._held_out = "", ""
        self._events: deque[str] = deque(maxlen=3)
        self._bar = Bar(TextColumn("batch"), MofNCompleteColumn(), BarColumn(bar_width=40), TextColumn("time left"), TimeRemainingColumn())
        self._task = self._bar.add_task("", total=config.learner.batches)
        self._live = Live(console=self._console, refresh_per_second=4, transient=False) if self._console.is_terminal else None
        self._first: tuple[int, float] | None = None  # the first batch seen, and when: what comes before it is start-up
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def _begin(self) -> None:
        if self._shown:
            return
        self._shown = True
        chain = self._config.chain()
        names = ", ".join(m.name for m in chain.methods)
        begun = f"{self._path}: {self._config.runtime.kind}, {self._config.learner.batches} batches, methods {names}"
        for line in (begun, *(f"note: {said}" for said in chain.said)):
            self._print(line)
        if self._live is not None:
            self._live.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def batch(self, record: BatchRecord, waiting_for: str) -> None:
        self._begin()
        self._recent.append(record)
        self._waiting = printable(waiting_for)
        self._first = self._first or (record.batch, time.monotonic())
        self._bar.update(self._task, completed=record.batch + 1)
        if self._live is not None:
            self._live.update(self._view())
        elif record.batch % QUIET_EVERY == 0 or record.batch + 1 == self._config.learner.batches:
            self._print(self._line(record))

    def event(self, event: Event) -> None:
        self._begin()
        self._events.append(printable(f"batch {event.batch}: {event.name}: {event.message}"))
        if self._live is not None:
            self._live.update(self._view())
        else:
            self._print(f"{event.severity.value}: {self._events[-1]}")

    def evaluated(self, batch: int, found: HeldOut) -> None:
        self._begin()
        self._held_out = f"{printable(found.text())}, after {batch} batches"
        if self._live is not None:
            self._live.update(self._view())
        else:
            self._print(f"held-out {self._held_out}")

    def _print(self, line: str) -> None:
        """A line as it is: brackets in it are no markup, and whatever a name or a message holds, it stays one line."""
        self._console.print(Text(printable(line)), soft_wrap=True)

    def _averages(self) -> list[tuple[str, str]]:
        out = []
        for label, name, form in SHOWN:
            values = [v for r in self._recent if (v := r.value(name)) is not None]
            out.append((label, _short(sum(v / len(values) for v in values), form) if values else "-"))
        return out

    def _left(self, record: BatchRecord) -> str:
        assert self._first is not None
        first, since = self._first
        todo = self._config.learner.batches - record.batch - 1
        if todo and record.batch == first:
            return "?"
        left = int((time.monotonic() - since) / max(1, record.batch - first) * todo)
        return f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}" if left >= 3600 else f"{left // 60}:{left % 60:02d}"

    def _line(self, record: BatchRecord) -> str:
        values = "  ".join(f"{label} {value}" for label, value in self._averages())
        notes = "".join(f"  {note}" for note in (self._failures(), self._skips(), self._waiting) if note)
        return f"batch {record.batch + 1}/{self._config.learner.batches}  {values}  left {self._left(record)}{notes}"

    def _failures(self) -> str:
        """How often the verifier failed lately; "" where it did not."""
        rates = [[r.metrics.get(f"outcome/{name}") for r in self._recent] for name in ("error", "timeout")]
        errors, timeouts = (sum(rate.numerator for rate in row if isinstance(rate, Rate)) for row in rates)
        asked = sum(rate.denominator for rate in rates[0] if isinstance(rate, Rate))
        return f"no verdict on {errors + timeouts:.0f} of {asked:.0f} responses" if errors + timeouts else ""

    def _skips(self) -> str:
        skipped = [r for r in self._recent if not r.applied]
        return f"{len(skipped)} of the last {len(self._recent)} batches skipped: {skipped[-1].reason}" if skipped else ""

    def _view(self) -> Group:
        table = Table.grid(padding=(0, 2))
        shown = self._averages()
        half = (len(shown) + 1) // 2
        for row in (shown[:half], shown[half:]):
            table.add_row(*[Text.assemble((f"{label} ", "dim"), value) for label, value in row])
        notes = [Text(f"held-out {self._held_out}", style="dim"), Text(self._waiting or "nobody waits", style="dim")]
        notes += [Text(e, style="yellow") for e in self._events]
        notes += [Text(note, style="yellow") for note in (self._failures(), self._skips()) if note]
        return Group(self._bar.get_renderable(), table, *notes)


def _short(value: float, form: str) -> str:
    """Whatever the number is, it does not take the line."""
    text = form.format(value)
    return text if len(text) <= 12 else f"{value:.2e}"
