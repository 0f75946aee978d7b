"""Whole runs on a tiny model: a JSONL task of sums, a reward that a random policy can find, and what a run left in its folder."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from torch import Tensor

from support.tiny import tiny_folder
from trimtab.config.load import validate
from trimtab.config.run import RunConfig
from trimtab.engines.digest import weights_digest
from trimtab.records import Json, Rollout
from trimtab.report.summary import Summary
from trimtab.runtime import run as running
from trimtab.runtime.session import Observer
from trimtab.store import checkpoint, rollout_log
from trimtab.telemetry.events import Event
from trimtab.telemetry.held_out import HeldOut
from trimtab.telemetry.metrics import BatchRecord

TIMES = ("time/", "throughput/", "publish/", "sampler/")
GROUPS, MEMBERS, NEW_TOKENS, LR = 8, 8, 12, 5e-4


def questions(n: int = 100) -> list[str]:
    """Prompts of one to seven characters."""
    return [f"{i}+{i * i % 13}=" if i % 3 else f"{i}=" for i in range(n)]


def config(folder: Path, methods: Sequence[Json], **tables: Mapping[str, Json]) -> RunConfig:
    """A run of the tiny model made in ``folder``; ``tables`` are laid over the configuration, key by key, two levels deep."""
    if not (folder / "model").exists():
        tiny_folder(folder / "model")
        (folder / "train.jsonl").write_text("".join(json.dumps({"prompt": q, "answer": ""}) + "\n" for q in questions()))
        (folder / "eval.jsonl").write_text("".join(json.dumps({"prompt": f"{q[:-1]}-2=", "answer": ""}) + "\n" for q in questions(8)))
    table: dict[str, Json] = {
        "model": str(folder / "model"),
        "methods": list(methods),
        "task": {
            "kind": "jsonl",
            "path": str(folder / "train.jsonl"),
            "eval_path": str(folder / "eval.jsonl"),
            "reward": "support.rewards:digit",
        },
        "rollout": {"max_new_tokens": NEW_TOKENS, "prompts_per_batch": GROUPS, "group_size": MEMBERS},
        "learner": {"optimizer": {"lr": LR}},
        "eval": {"prompts": 8},
    }
    for name, changes in tables.items():
        table[name] = cast("dict[str, Json]", table.get(name, {})) | dict(changes)
    return validate(table)


class Quiet:
    """An observer that tells nobody."""

    def batch(self, record: BatchRecord, waiting_for: str) -> None: ...
    def event(self, event: Event) -> None: ...
    def evaluated(self, batch: int, found: HeldOut) -> None: ...


class Interrupting(Quiet):
    """Sends its own process SIGTERM after so many batches."""

    def __init__(self, after: int) -> None:
        self._after = after

    def batch(self, record: BatchRecord, waiting_for: str) -> None:
        if record.batch + 1 == self._after:
            os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _undrawn() -> Iterator[None]:
    """No report at the end: drawing takes longer than these runs, and has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "_report", lambda folder: None)
        yield


def train(config: RunConfig, path: Path, observer: Observer | None = None) -> Summary:
    with _undrawn():
        return running.start(config, path, observer or Quiet())


def resume(path: Path, observer: Observer | None = None) -> Summary:
    with _undrawn():
        return running.resume(path, [], observer or Quiet())


def weights_after(path: Path, batches: int) -> dict[str, Tensor]:
    """The weights after so many consumed batches, from the checkpoint made then."""
    return cast("dict[str, Tensor]", checkpoint.load(path / "checkpoints", batches)["model"])


def digest_after(path: Path, batches: int) -> str:
    return weights_digest(weights_after(path, batches))


def furthest(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Largest difference of two sets of weights."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).detach().abs().max()) for name in a)


def trained(path: Path) -> dict[tuple[int, int, int], Rollout]:
    """Every rollout trained on, by (epoch, index, member); fails where one was trained on twice."""
    groups = [g for entry in rollout_log.read(path / "rollouts") if entry.trained for g in entry.groups]
    by_key = {(g.slot.epoch, g.slot.index, r.member): r for g in groups for r in g.rollouts}
    assert len(by_key) == sum(len(g.rollouts) for g in groups)
    return by_key


def tokens(path: Path) -> dict[tuple[int, int, int], list[int]]:
    """The token ids of every rollout trained on."""
    return {key: r.segments[0].tokens.tolist() for key, r in trained(path).items()}


def lines(file: Path, *drop: str) -> list[dict[str, Json]]:
    """The records of a log, without times and without the names of lives (``incarnation``)."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records:
        for name in ("time", "incarnation", *drop):
            record.pop(name, None)
        if "metrics" in record:
            record["metrics"] = {k: v for k, v in record["metrics"].items() if not k.startswith(TIMES)}
    return records
