"""Which rows can be run at all: rendered and measured once, before a plan is made, wherever they stand.

A prompt that is too long, or that the chat template or the tokenizer refuses, is a property of the row, the model's folder and the
lengths asked for: it is found here, counted and told once, and never drawn. Rows that are made up when they are asked for are too many
to look at; some are, and one that turns out bad during the run is given up at its first attempt.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from trimtab.records import I32, I64, TrimtabError
from trimtab.rollout.render import Renderer
from trimtab.tasks.protocol import Prompt, Task

log = logging.getLogger(__name__)

_SOME = 64  # rows looked at of a task that makes them up
_TOLD = 3  # rows that a note names
_LONG_S = 5.0


@dataclass(frozen=True, slots=True)
class Screened:
    """The rows that can be run, ascending; ``notes``: what a person should know of the others."""

    rows: I64
    notes: tuple[str, ...] = ()


def screen(task: Task, renderer: Renderer) -> Screened:
    """Look at the training rows. Raises TrimtabError where none of those looked at can be run."""
    every = np.arange(len(task))
    looked = every if task.data.stored else every[:_SOME]
    begun = time.monotonic()
    good, refused = _sort_out(task.prompt, renderer, looked.tolist(), len(looked))
    if len(looked) and not good:
        raise TrimtabError(f"none of {len(looked)} training prompts can be run: {refused[0]}")
    if time.monotonic() - begun > _LONG_S:
        log.info("looked at %d prompts in %.0f s", len(looked), time.monotonic() - begun)
    if not task.data.stored:
        return Screened(every)
    return Screened(np.array(good, np.int64), _note(f"{len(refused)} of {len(looked)} training rows", refused))


def held_out(task: Task, renderer: Renderer, wanted: int) -> Screened:
    """The first ``wanted`` evaluation rows that can be run, or all of them. Raises TrimtabError where there is none."""
    good, refused = _sort_out(task.eval_prompt, renderer, range(task.eval_size), wanted)
    if not good:
        raise TrimtabError(f"none of {task.eval_size} evaluation prompts can be run: {refused[0]}")
    return Screened(np.array(good, np.int64), _note(f"{len(refused)} of {len(good) + len(refused)} held-out rows", refused))


def rendered(get: Callable[[int], Prompt], renderer: Renderer, row: int) -> tuple[Prompt, I32]:
    """The prompt of a row and its ids. Raises TrimtabError where it cannot be run, whatever the reason."""
    with _about(row):
        prompt = get(row)
    with _about(row, prompt):
        return prompt, renderer.ids(prompt)


@contextmanager
def _about(row: int, prompt: Prompt | None = None) -> Iterator[None]:
    """What a row makes a task, a template or a tokenizer do is data about this row: every error is a TrimtabError that names it."""
    try:
        yield
    except TrimtabError:
        raise
    except Exception as error:
        named = f"row {row}" if prompt is None else prompt.named
        raise TrimtabError(f"the prompt of {named} cannot be rendered ({type(error).__name__}: {error})") from error


def _check(get: Callable[[int], Prompt], renderer: Renderer, row: int) -> None:
    """Raises where :func:`rendered` would; most rows are known to fit without their ids."""
    with _about(row):
        prompt = get(row)
    with _about(row, prompt):
        if not renderer.surely_fits(prompt):
            renderer.ids(prompt)


def _sort_out(get: Callable[[int], Prompt], renderer: Renderer, rows: Sequence[int], wanted: int) -> tuple[list[int], list[str]]:
    good: list[int] = []
    refused: list[str] = []
    for row in rows:
        if len(good) == wanted:
            break
        try:
            _check(get, renderer, row)
        except TrimtabError as error:
            refused.append(str(error))
        else:
            good.append(row)
    return good, refused


def _note(what: str, refused: Sequence[str]) -> tuple[str, ...]:
    if not refused:
        return ()
    more = f"; and {len(refused) - _TOLD} more" if len(refused) > _TOLD else ""
    return (f"{what} cannot be run and are set aside: {'; '.join(refused[:_TOLD])}{more}",)
