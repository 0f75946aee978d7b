"""From run files to a model: what is read, what is left out, what cannot be read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.rollouts import rollout, segment
from trimtab import keyed
from trimtab.config.load import load
from trimtab.lab.plugins.latency import LatencyEngineOptions
from trimtab.records import Group, Json, Slot, StopReason, Timing, TrimtabError
from trimtab.sim.fit import fit, measured
from trimtab.sim.model import LearnerStep, SimRollout
from trimtab.store import rollout_log
from trimtab.store.rollout_log import RolloutLog

LATENCY = 'engine={kind = "latency", step_s = 0.1, slots = 4}'


def run_folder(folder: Path, *overrides: str, batches: int = 4) -> Path:
    """Batches of one group of two rollouts: 4 tokens in 0.8 s, a swap of 0.2 s among them, verified 0.3 s later."""
    (folder / "config.json").write_text(json.dumps(load("quickstart", [LATENCY, *overrides]).model_dump(mode="json")))
    (folder / "rollouts").mkdir(exist_ok=True)
    with (folder / "metrics.jsonl").open("w") as metrics, RolloutLog(folder / "rollouts") as log:
        for b in range(batches):
            values: dict[str, Json] = {
                "time/wait": 1.0, "time/forward": 0.25, "time/backward": 0.5, "time/publish": 0.125,
                "time/log": 0.0625, "time/other": 0.0625, "publish/stage": 0.1, "publish/pause": 0.1, "sampler/busy": [1.5, 2.0],
                "sampler/idle": [0.5, 2.0],
                "age/mean": [12.0, 8.0], "age/generation": [4.0, 8.0], "groups/mixed": [1.0, 1.0],
                "pool/waiting": 3.0, "pool/let_go": [1.0, 1.0],
            }  # fmt: skip
            row = {"batch": b, "version": b + 1, "time": 2.0 * (b + 1), "applied": b != 3, "metrics": values}
            metrics.write(json.dumps(row) + "\n")
            rng = np.random.default_rng(b)
            timing = Timing(started=100.0 + b, finished=100.8 + b, verified=101.1 + b)
            part = replace(segment(rng, "..aaaa"), versions=np.array([-1, -1, b, b, b + 1, b + 1], np.int32))
            stops = StopReason.EOS, StopReason.LENGTH
            pair = tuple(replace(rollout(part, member=m, reward=1.0), stop=stop, timing=timing) for m, stop in enumerate(stops))
            group = Group(slot=Slot(0, b), prompt=0, attempt=0, seed=0, task="t", source="", rollouts=pair)
            log.append(b, b, [group])
        log.flush()
    return folder


def test_times_of_a_run(tmp_path: Path) -> None:
    model = fit(run_folder(tmp_path), warm=1)
    assert sorted(model.groups) == [Slot(0, 1), Slot(0, 2), Slot(0, 3)]
    step = (0.8 - 0.2) / 4
    # A verdict that was seen after the second step had come at its beginning at the earliest.
    assert model.groups[Slot(0, 2)] == (SimRollout(4, 4, 0.0, pytest.approx(1.1 * step), 1.0),) * 2
    assert model.decode == pytest.approx(np.full(3 * 2 * 4, step))
    assert model.steps[1] == pytest.approx(LearnerStep(0.75, 0.125, 0.125, 0.1, 0.1, True))
    assert not model.steps[3].applied
    rng = np.random.default_rng(0)
    assert model.group(rng, Slot(0, 2), 2) == list(model.groups[Slot(0, 2)])
    assert model.step(rng, 3) is model.steps[3]
    drawn = replace(model, replay=False)
    assert {drawn.step(rng, 3).applied for _ in range(20)} == {True, False}
    assert len(model.group(rng, Slot(9, 9), 5)) == 5  # a slot it has never seen, a larger group


def test_what_no_scorer_sees_takes_no_time(tmp_path: Path) -> None:
    for members in fit(run_folder(tmp_path, 'rollout.truncated="wrong"'), warm=1).groups.values():
        assert [m.verify_s > 0 for m in members] == [True, False]


def test_a_verdict_that_nothing_held_up(tmp_path: Path) -> None:
    """Seen within a step's time: the sampler was not decoding."""
    folder = run_folder(tmp_path)
    logged = list(rollout_log.read(folder / "rollouts"))
    for file in (folder / "rollouts").iterdir():
        file.unlink()
    with RolloutLog(folder / "rollouts") as log:
        for entry in logged:
            quick = [replace(r, timing=replace(r.timing, verified=r.timing.finished + 0.01)) for r in entry.groups[0].rollouts]
            log.append(entry.batch, entry.version, [replace(entry.groups[0], rollouts=tuple(quick))])
    assert fit(folder, warm=1).groups[Slot(0, 1)][0].verify_s == pytest.approx(0.01, abs=1e-6)


def test_figures_of_a_run(tmp_path: Path) -> None:
    f = measured(run_folder(tmp_path), warm=1)
    assert (f.batches, f.batches_per_s, f.age, f.generation, f.waiting) == (3, 0.5, 1.5, 0.5, 1.0)
    assert (f.learner_idle, f.sampler_idle, f.let_go, f.pool) == (0.5, 0.25, 0.5, 3.0)


def test_steps_of_slow_rollouts(tmp_path: Path) -> None:
    """``slowness``: from the rollout's key, as the engine draws it."""
    model = fit(run_folder(tmp_path, "engine.slowness=1.0"), warm=1)
    options = LatencyEngineOptions(slowness=1.0)
    for slot, members in model.groups.items():
        for i, member in enumerate(members):
            speed = options.speed(keyed.stream(0, slot.epoch, slot.index, 0, i))
            assert member.steps == int(np.ceil(4 / speed))


def test_what_cannot_be_fitted(tmp_path: Path) -> None:
    run_folder(tmp_path)
    with pytest.raises(TrimtabError, match="it has 4 batches and the first 4 are left out; train longer"):
        fit(tmp_path, warm=4)
    for file in (tmp_path / "rollouts").iterdir():
        file.unlink()
    with pytest.raises(TrimtabError, match=r"run with store\.rollouts = true"):
        fit(tmp_path, warm=1)
    run_folder(tmp_path, "engine.rollout_s=0.05")
    with pytest.raises(TrimtabError, match=r"engine\.rollout_s = 0\.05"):
        fit(tmp_path, warm=1)
