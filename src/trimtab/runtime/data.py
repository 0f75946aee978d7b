"""The data of a run: which rows can be run, in which order they come, and what a person should know about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trimtab.pool.order import Order, mixed, quotas, whole
from trimtab.records import I64, TrimtabError
from trimtab.rollout.render import Renderer
from trimtab.rollout.screen import held_out, screen
from trimtab.tasks.protocol import DataRead, Task


@dataclass(frozen=True, slots=True)
class TrainingData:
    """``rows``: the task's training rows that can be run; ``notes``: what was set aside; ``told``: what there is, file by file."""

    read: DataRead
    rows: I64
    order: Order
    notes: tuple[str, ...]
    told: tuple[str, ...]


def look(task: Task, renderer: Renderer, *, seed: int, evaluated: int) -> TrainingData:
    """Look at the rows before anything is planned. Raises TrimtabError where there is nothing to train or evaluate on."""
    screened, first = screen(task, renderer), held_out(task, renderer, evaluated)
    by_file = _by_file(task.data, screened.rows)
    notes = (*renderer.notes, *task.data.notes, *screened.notes, *first.notes)
    return TrainingData(task.data, screened.rows, _order(seed, task.data, by_file), notes, tuple(_told(task.data, by_file)))


def _by_file(data: DataRead, rows: I64) -> list[I64]:
    """Raises TrimtabError for a file with a weight of which no row is left."""
    ends = np.cumsum([part.rows for part in data.parts])
    parts = np.split(rows, np.searchsorted(rows, ends[:-1]))
    for part, own in zip(data.parts, parts, strict=True):
        if part.weight is not None and not len(own):
            raise TrimtabError.field("task.prompts", part.name, f"none of its {part.rows} rows can be run; leave it out or shorten them")
    return parts


def _order(seed: int, data: DataRead, by_file: list[I64]) -> Order:
    weights = _weights(data)
    return mixed(seed, by_file, weights) if weights else whole(seed, np.concatenate(by_file))


def _weights(data: DataRead) -> list[float]:
    return [part.weight for part in data.parts if part.weight is not None]


def _told(data: DataRead, by_file: list[I64]) -> Iterator[str]:
    """A line a file, where there are several."""
    if len(by_file) < 2:
        return
    sizes = [len(rows) for rows in by_file]
    total, weights = sum(sizes), _weights(data)
    for part, size, slots in zip(data.parts, sizes, quotas(total, weights) if weights else sizes, strict=True):
        yield f"{part.name}: {size:,} training rows, {slots / total:.1%} of the prompts, each {slots / size:.2f} times an epoch"
