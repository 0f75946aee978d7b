"""From a real run folder to a :class:`MeasuredModel`, and to the figures that the model has to agree with.

Everything comes from files that telemetry writes anyway: ``metrics.jsonl`` (learner, publications, samplers) and ``rollouts/`` (when
each rollout was started, finished and verified).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import cast

import numpy as np

from trimtab import keyed
from trimtab.config.load import read_resolved, validate
from trimtab.engines.options import EngineOptions
from trimtab.records import Group, Json, Rollout, Slot, StopReason, TrimtabError
from trimtab.report import runfiles
from trimtab.report.runfiles import Row
from trimtab.sim.figures import BatchFacts, Figures, figures
from trimtab.sim.model import LearnerStep, MeasuredModel, SimRollout
from trimtab.store import rollout_log
from trimtab.telemetry.metrics import number, pair
from trimtab.telemetry.names import TIME_SHARES

WARM = 10  # first batches left out: processes start, caches fill, nothing is old yet
AFTER = ("time/log", "time/checkpoint", "time/eval")  # of the learner, behind the publication; so is most of what has no name
_NOT_TRAINING = ("time/wait", "time/publish", "time/start", "time/other", *AFTER)


def fit(folder: Path, warm: int = WARM) -> MeasuredModel:
    """Groups and steps of a run of the local runtime, without those of the first ``warm`` batches.

    The time of a decode step is that of a rollout in its slot over its steps. What the swaps in the middle of it took is taken out,
    since the model adds it where it falls. Groups that were let go are in no rollout log: where selection drops many of one kind, the
    fit lacks them.

    Raises:
        TrimtabError: the run has no rollout log (``store.rollouts``), or is too short.
    """
    config = validate(read_resolved(folder / "config.json"))
    config.engine.check_timing()
    rows = _rows(folder, warm)
    steps_at = {round(number(row.get("batch")) or 0.0): _step(row) for row in rows}
    swap_s = _mean([_of(row, "publish/stage") + _of(row, "publish/pause") for row in rows if "publish/pause" in _metrics(row)])
    first = number(rows[0].get("batch")) or 0.0
    logged = [g for entry in rollout_log.read(folder / "rollouts") if entry.batch >= first for g in entry.groups]
    timed = [(g, r) for g in logged for r in g.rollouts if 0 < r.timing.started < r.timing.finished <= r.timing.verified]
    if not timed:
        raise TrimtabError.field("run folder", str(folder), "it has no rollouts after the warm-up; run with store.rollouts = true")
    steps = np.array([_steps(config.engine, g, r) for g, r in timed])
    swaps = np.array([r.versions()[-1] - r.versions()[0] for _, r in timed])
    seconds = np.array([r.timing.finished - r.timing.started for _, r in timed])
    step_s = np.maximum(seconds - swap_s * swaps, 0.1 * seconds) / steps
    unseen = StopReason.LENGTH if config.rollout.truncated == "wrong" else None  # judged without a scorer
    groups: dict[Slot, list[SimRollout]] = {}
    for (g, r), n, s in zip(timed, steps.tolist(), step_s.tolist(), strict=True):
        verdict_s = 0.0 if r.stop is unseen else _verdict_s(r.timing.verified - r.timing.finished, s)
        groups.setdefault(g.slot, []).append(SimRollout(r.actions, n, 0.0, verdict_s, r.score))
    return MeasuredModel({slot: tuple(members) for slot, members in groups.items()}, np.repeat(step_s, steps), steps_at)


def _verdict_s(seen_s: float, step_s: float) -> float:
    """How long a verdict took that was seen after ``seen_s``. A sampler that decodes looks for it after each step only."""
    steps = round(seen_s / step_s)
    return (steps - 0.9) * step_s if steps else seen_s


def _steps(engine: EngineOptions, group: Group, rollout: Rollout) -> int:
    """Decode steps in which it held its slot."""
    slot = group.slot
    key = keyed.stream(group.seed, slot.epoch, slot.index, group.attempt, rollout.member)
    return ceil(rollout.actions / engine.speed(key) - 1e-9)


def measured(folder: Path, warm: int = WARM) -> Figures:
    """What the run was like."""
    rows = _rows(folder, 0)
    return figures([_facts(row) for row in rows], warm)


def _rows(folder: Path, warm: int) -> list[Row]:
    rows = runfiles.load(folder, folder.name).metrics
    if len(rows) <= warm:
        raise TrimtabError.field("run folder", str(folder), f"it has {len(rows)} batches and the first {warm} are left out; train longer")
    return rows[warm:]


def _step(row: Row) -> LearnerStep:
    train = sum(_of(row, name) for name in TIME_SHARES if name not in _NOT_TRAINING)
    after = sum(_of(row, name) for name in (*AFTER, "time/other"))
    return LearnerStep(
        train, _of(row, "time/publish"), after, _of(row, "publish/stage"), _of(row, "publish/pause"), row.get("applied") is not False
    )


def _facts(row: Row) -> BatchFacts:
    age, tokens = _pair(row, "age/mean")
    let_go, _ = _pair(row, "pool/let_go")
    busy, _ = _pair(row, "sampler/busy")
    idle, _ = _pair(row, "sampler/idle")
    groups = _pair(row, "groups/mixed")[1]
    return BatchFacts(
        end_s=number(row.get("time")) or 0.0,
        wait_s=_of(row, "time/wait"),
        tokens=round(tokens),
        age=age,
        generation=_pair(row, "age/generation")[0],
        busy_s=busy,
        idle_s=idle,
        trained=round(groups),
        let_go=round(let_go),
        waiting=round(_of(row, "pool/waiting")),
    )


def _metrics(row: Row) -> Mapping[str, object]:
    found = row.get("metrics")
    return found if isinstance(found, dict) else {}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _pair(row: Row, name: str) -> tuple[float, float]:
    return pair(cast(Json, _metrics(row).get(name))) or (0.0, 0.0)


def _of(row: Row, name: str) -> float:
    return _pair(row, name)[0]
