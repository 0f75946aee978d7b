"""The run in words and tables: verdict, comparison, events, decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.records import Json
from trimtab.report import style
from trimtab.report.panels import SMOOTH
from trimtab.report.runfiles import Row, Run
from trimtab.report.shares import waits
from trimtab.telemetry.detectors import NormSpike
from trimtab.telemetry.held_out import HeldOut, moved
from trimtab.telemetry.intervals import Estimate, change
from trimtab.telemetry.metrics import LARGEST, number

_ENDED = {
    "done": "The run finished its plan.",
    "stopped": "The run was stopped by a health or liveness rule",
    "interrupted": "The run was interrupted and checkpointed",
    "failed": "The run failed",
    "running": "The run had not ended when this page was made.",
}


def verdict(run: Run, brief: bool = False) -> list[str]:
    """What came out, in sentences; the first one is the headline. ``brief``: beside other runs."""
    s = run.summary
    out = [_headline(run), *_held_out(run)]
    if s is None:
        out.append("There is no summary.json: the run was killed before it could write one, or it is still going.")
    else:
        ended = _ENDED[s.status]
        out.append(ended if ended.endswith(".") else f"{ended}{f': {s.reason}' if s.reason else ''}.")
    if brief:
        return out
    batches, applied = (s.batches, s.applied) if s else (len(run.metrics), int(run.applied.sum()))
    out.append(f"{_count(batches, 'batch', 'batches')} consumed: {applied:,} applied, {_skips(run, batches - applied)}.")
    mean_age = s.mean_age if s else run.mean("age/mean")
    max_age = s.max_age if s else _peak(run, "age/max")
    spanning = s.spanning_rollouts if s else run.total("rollouts/spanning")[0]
    if mean_age is not None and max_age is not None:
        out.append(
            f"Trained tokens were {mean_age:.1f} versions old on average and at most {max_age:.0f}; "
            f"{_count(int(spanning), 'rollout', 'rollouts')} had tokens of two or more versions."
        )
    out.append(_alarms(run))
    waited, idle = waits(run)
    if waited is not None:
        side = "" if idle is None else f", the samplers were idle {idle:.0%}"
        bound = "" if idle is None else (" Sampling was the bottleneck." if waited > idle else " Learning was the bottleneck.")
        out.append(f"The learner waited {waited:.0%} of its time for rollouts{side}.{bound}")
    if s is not None:
        out.append(f"It took {_duration(s.wall_s)} of wall time and {_duration(s.cpu_s)} of CPU time.")
    if run.damaged:
        lines = ", ".join(f"{n} in {name}" for name, n in run.damaged.items())
        out.append(f"Lines that could not be read, as a crash leaves them, were left out: {lines}.")
    if run.unreadable:
        lost = ", ".join(f"{name} in {_count(n, 'batch', 'batches')}" for name, n in sorted(run.unreadable.items()))
        out.append(f"Not finite, or too large to mean anything, and left out: {lost}.")
    return out


def _headline(run: Run) -> str:
    points = run.believed
    if len(points) >= 2:
        (_, first), (_, last) = points[0], points[-1]
        name, now = last.main
        batch, best = max(points, key=lambda point: _value(point[1], name).mean)
        top = _value(best, name)
        lost = batch > 0 and top.mean > now.mean + 0.05 and change(top, now) != "noise"
        return f"Held-out {name} {moved(first, last)[1]}{f', after {top.mean:.2f} at batch {batch:.0f}' if lost else ''}."
    _, reward = run.series("reward/mean")
    if reward.size:
        window = max(1, min(SMOOTH, len(reward) // 4))
        first, last = reward[:window].mean(), reward[-window:].mean()
        return f"Reward went from {first:.2f} to {last:.2f} over {_count(len(reward), 'batch', 'batches')}."
    return "No batch was recorded."


def _value(found: HeldOut, name: str) -> Estimate:
    return found.score if name == "score" else found.accuracy


def _told(found: HeldOut | None, name: str) -> str:
    if found is None:
        return "–"
    return f"{_value(found, name).text()}{' (not believed)' if found.doubtful else ''}"


def _held_out(run: Run) -> list[str]:
    """What must be known to read the held-out number."""
    out = []
    if run.believed:
        _, last = run.believed[-1]
        told = "; ".join(last.notes())
        out = [f"{told[0].upper()}{told[1:]}."] if told else []
    doubted = [batch for batch, found in run.evaluations if found.doubtful]
    if doubted:
        worst = max((found for _, found in run.evaluations), key=lambda found: found.failed)
        at = ", ".join(f"{batch:.0f}" for batch in doubted)
        out.append(f"Not believed, because too many of their responses failed: the evaluations after batch {at} ({worst.failures()}).")
    best = run.summary.evaluation("best") if run.summary is not None else None
    if best is not None and run.summary is not None and run.summary.best is not None:
        name, value = best.main
        out.append(f"best/ holds the model after batch {run.summary.best['batch']}, with {name} {value.text(2)}.")
    return out


def alarms(run: Run) -> tuple[list[Row], int]:
    """Events that are alarms, and the number of gradient-norm spikes, which alone are none."""
    loud = [event for event in run.events if event.get("severity") != "info"]
    spikes = sum(event.get("name") == NormSpike.name for event in loud)
    return [event for event in loud if event.get("name") != NormSpike.name], spikes


def _alarms(run: Run) -> str:
    found, spikes = alarms(run)
    first = {_cell(event.get("name")): _cell(event.get("batch")) for event in reversed(found)}
    listed = ", ".join(f"{name} at batch {batch}" for name, batch in reversed(first.items()))
    norm = f" {_count(spikes, 'spike', 'spikes')} of the gradient norm." if spikes else ""
    return (f"Alarms: {listed}." if listed else "No alarm was raised.") + norm


def _skips(run: Run, skipped: int) -> str:
    reasons: dict[str, int] = {}
    for row, applied in zip(run.metrics, run.applied, strict=True):
        reason = row.get("reason")
        if not applied and isinstance(reason, str) and reason:
            reasons[reason] = reasons.get(reason, 0) + 1
    listed = ", ".join(f"{n} {reason}" for reason, n in sorted(reasons.items(), key=lambda item: -item[1]))
    return f"{skipped:,} skipped" + (f" ({listed})" if listed and skipped else "")


@dataclass(frozen=True, slots=True)
class Fact:
    """One number of a run, for the tiles at the top and the table that compares runs."""

    name: str
    value: str


def facts(run: Run) -> list[Fact]:
    """The numbers by which runs are compared."""
    s = run.summary
    points = run.evaluations
    first, last = (points[0][1] if points else None), (points[-1][1] if len(points) > 1 else None)
    worst_ess, worst_kl = _window(run, "ess/ratio", lowest=True), _window(run, "kl/k3", lowest=False)
    best = _window(run, "reward/mean", lowest=False)
    rate = run.mean("throughput/tokens_per_s")
    alarm_events, spikes = alarms(run)
    batches, applied = (s.batches, s.applied) if s else (len(run.metrics), int(run.applied.sum()))
    mean_age = s.mean_age if s else run.mean("age/mean")
    max_age = s.max_age if s else _peak(run, "age/max")
    return [
        Fact("status", s.status if s else "no summary"),
        *(
            Fact(f"{name} {when}", _told(found, name))
            for name in ("score", "accuracy")
            for when, found in (("before", first), ("after", last))
        ),
        Fact("held-out n, failed", "–" if last is None else f"{last.asks()}, {last.errors + last.timeouts} of {last.asked}"),
        Fact(f"best reward, {SMOOTH} batches", _shown(best, ".3f")),
        Fact("batches", f"{batches:,}"),
        Fact("applied / skipped", f"{applied:,} / {batches - applied:,}"),
        Fact("age mean / max", f"{_shown(mean_age, '.1f')} / {_shown(max_age, '.0f')}"),
        Fact("spanning rollouts", f"{s.spanning_rollouts if s else run.total('rollouts/spanning')[0]:,.0f}"),
        Fact(f"lowest ESS, {SMOOTH} batches", _shown(worst_ess, ".2f")),
        Fact(f"highest KL, {SMOOTH} batches", _shown(worst_kl, ".2g")),
        Fact("weights moved by a step", _shown(run.mean("step/moved"), ".2%")),
        Fact("alarms / norm spikes", f"{len(alarm_events)} / {spikes}"),
        Fact("tokens/s", _shown(rate, ",.0f")),
        Fact("wall", _duration(s.wall_s) if s else "–"),
        Fact("CPU", _duration(s.cpu_s) if s else "–"),
        Fact("methods", ", ".join(s.methods) if s else "–"),
        Fact("seed", str(s.seed) if s else "–"),
    ]


def differing(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Options whose values are not the same in all runs."""
    options = [run.options() for run in runs]
    names = sorted(set().union(*options))
    rows = [(name, [o.get(name, "–") for o in options]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


@dataclass(frozen=True, slots=True)
class EventRow:
    run: str
    batch: str
    name: str
    severity: str
    message: str
    evidence: str


def events(runs: Sequence[Run]) -> list[EventRow]:
    """All events, in order of run and batch."""
    rows = []
    for run in runs:
        for event in run.events:
            evidence = event.get("evidence")
            cells = evidence.items() if isinstance(evidence, dict) else ()
            numbers = ", ".join(f"{k} {_cell(v)}" for k, v in cells)
            batch, name, severity, message = (_cell(event.get(key)) for key in ("batch", "name", "severity", "message"))
            rows.append(EventRow(run.label, batch, name, severity, message, numbers))
    return rows


@dataclass(frozen=True, slots=True)
class DecisionRow:
    run: str
    method: str
    point: str
    what: str
    count: int
    batches: int
    smallest: str
    largest: str
    why: str  # of the largest


def decisions(runs: Sequence[Run]) -> list[DecisionRow]:
    """What the methods did, by method, point and action: how often, in how many batches, amounts, and the reason of the largest."""
    rows = []
    for run in runs:
        found: dict[tuple[str, str, str], list[tuple[float, Json, str]]] = {}
        for row in run.decisions:
            key = (_cell(row.get("method")), _cell(row.get("point")), _cell(row.get("what")))
            found.setdefault(key, []).append((number(row.get("amount")) or 0.0, row.get("batch"), _cell(row.get("why"))))
        for (method, point, what), all_of in found.items():
            amount, _, why = max(all_of, key=lambda item: abs(item[0]))
            least = min((item[0] for item in all_of), key=abs)
            batches = len({str(batch) for _, batch, _ in all_of})
            rows.append(DecisionRow(run.label, method, point, what, len(all_of), batches, f"{least:.3g}", f"{amount:.3g}", why))
    return rows


def _window(run: Run, name: str, lowest: bool) -> float | None:
    """The lowest or highest mean of full windows of a metric."""
    _, y = run.series(name)
    if len(y) < SMOOTH:
        return None
    means = style.smooth(y, SMOOTH)[SMOOTH - 1 :]
    return float(means.min() if lowest else means.max())


def _peak(run: Run, name: str) -> float | None:
    _, y = run.series(name)
    return float(y.max()) if y.size else None


def _shown(value: float | None, form: str) -> str:
    if value is None or not np.isfinite(value):
        return "–"
    return format(value, form) if abs(value) < 1e15 else f"{value:.3g}"


def _cell(value: Json) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _count(n: int, one: str, many: str) -> str:
    return f"{n:,} {one if n == 1 else many}"


def _duration(seconds: float) -> str:
    if not abs(seconds) <= LARGEST:
        return "–"
    if seconds < 90:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
