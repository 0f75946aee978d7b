"""Prompts from JSONL files with a column map. Every error names the file, the line and the column.

Which rows there are, which of them are held out and in which order they stand follows from the files and the options alone: every
process that reads them finds the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trimtab import keyed
from trimtab.records import I32, I64, TrimtabError
from trimtab.tasks.options import JsonlOptions, PromptFile
from trimtab.tasks.protocol import DataRead, Part, Prompt
from trimtab.tasks.row import identity, parse
from trimtab.tasks.row_file import RowFile

_HELD_OUT = 512  # most rows held out where the options name no number


class JsonlTask:
    """Rows of files, read when they are asked for. Training rows whose prompt is also an evaluation prompt are left out."""

    def __init__(self, options: JsonlOptions) -> None:
        self._options = options
        names = _names([file.path for file in options.files])
        self.name = "+".join(names)
        files = [_Named(name, _read(file.path, field, name, options)) for name, (field, file) in zip(names, _fields(options), strict=True)]
        rows = _Rows.all(files)
        if options.eval_path is not None:
            name = Path(options.eval_path).stem
            evaluation = _Rows.all([_Named(name, _read(options.eval_path, "task.eval_path", name, options))])
        else:
            evaluation, rows = _split(rows, options)
        held_out = np.isin(rows.identities(), evaluation.identities())
        training = rows.take(np.flatnonzero(~held_out))
        if not len(training):
            field, said = _first(options)
            raise TrimtabError.field(field, said, "every row repeats an evaluation prompt, so nothing is left to train on")
        self._training, self._evaluation = training, evaluation
        self.eval_size = len(evaluation)
        counts = np.bincount(training.file, minlength=len(files)).tolist()
        self.data = DataRead(
            digests={file.rows.field: (file.rows.path, file.rows.digest) for file in (*files, *evaluation.files)},
            parts=tuple(Part(f.name, n, given.weight) for f, n, given in zip(files, counts, options.files, strict=True)),
            notes=tuple(_notes((*files, *(f for f in evaluation.files if f not in files)), int(held_out.sum()))),
            stored=True,
        )
        for part, (field, file) in zip(self.data.parts, _fields(options), strict=True):
            if not part.rows:
                raise TrimtabError.field(field, file.path, "none of its rows is left to train on: they are held out; leave the file out")

    def __len__(self) -> int:
        return len(self._training)

    def prompt(self, row: int) -> Prompt:
        return self._prompt(self._training, row)

    def eval_prompt(self, row: int) -> Prompt:
        return self._prompt(self._evaluation, row)

    def _prompt(self, rows: _Rows, row: int) -> Prompt:
        name, place, line = rows.line(row)
        return replace(parse(line, self._options, name), row=row, place=place)


@dataclass(frozen=True, slots=True, eq=False)
class _Named:
    name: str  # the source of its rows
    rows: RowFile


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some rows of some files: row i is ``index[i]`` of ``files[file[i]]``."""

    files: Sequence[_Named]
    file: npt.NDArray[np.int16]
    index: I32

    @classmethod
    def all(cls, files: Sequence[_Named]) -> _Rows:
        sizes = [len(f.rows) for f in files]
        return cls(
            files, np.arange(len(files), dtype=np.int16).repeat(sizes), np.concatenate([np.arange(n, dtype=np.int32) for n in sizes])
        )

    def __len__(self) -> int:
        return len(self.index)

    def take(self, which: I64) -> _Rows:
        return _Rows(self.files, self.file[which], self.index[which])

    def identities(self) -> npt.NDArray[np.uint64]:
        out = np.zeros(len(self), np.uint64)
        for i, f in enumerate(self.files):
            mine = self.file == i
            out[mine] = f.rows.identities[self.index[mine]]
        return out

    def line(self, row: int) -> tuple[str, str, bytes]:
        """(name of the file, where it stands, the line)."""
        f, i = self.files[int(self.file[row])], int(self.index[row])
        return f.name, f"line {f.rows.number(i)} of {f.rows.path}", f.rows.line(i)


def _read(path: str, field: str, name: str, options: JsonlOptions) -> RowFile:
    look = partial(_look, options=options, name=name)
    rows = RowFile(path, field, look)
    if rows.bad and not len(rows):
        raise TrimtabError(f"{field} = {path!r}: none of its {rows.bad} rows can be used: {rows.complaint()}")
    if rows.bad and options.bad_rows == "refuse":
        bad = "1 bad row; mend it" if rows.bad == 1 else f"{rows.bad} bad rows; mend them"
        raise TrimtabError(f'{field} = {path!r}: {rows.complaint()} ({bad} or set task.bad_rows = "set_aside")')
    if not len(rows):
        raise TrimtabError.field(field, path, "has no rows; one JSON object a line is wanted")
    return rows


def _look(line: bytes, options: JsonlOptions, name: str) -> int:
    return identity(parse(line, options, name))


def _split(rows: _Rows, options: JsonlOptions) -> tuple[_Rows, _Rows]:
    """(held out, left). Of one file in its order; of several in a drawn one, so that the first rows are of all of them."""
    count = options.eval_rows or min(_HELD_OUT, math.ceil(options.eval_fraction * len(rows)))
    if count >= len(rows):
        said = _first(options)[1]
        raise TrimtabError.field("task.eval_rows", count, f"{said} has {len(rows)} rows, so nothing is left to train on")
    order = keyed.permutation(options.seed, 0, len(rows))
    held_out, left = order[:count], np.sort(order[count:])
    return rows.take(np.sort(held_out) if len(rows.files) == 1 else held_out), rows.take(left)


def _fields(options: JsonlOptions) -> list[tuple[str, PromptFile]]:
    """The files with the fields that name them."""
    if options.path is not None:
        return [("task.path", options.files[0])]
    return [(f"task.prompts.{i}.path", file) for i, file in enumerate(options.files)]


def _first(options: JsonlOptions) -> tuple[str, str]:
    """The field of the prompts and what it says."""
    return ("task.path", options.path) if options.path is not None else ("task.prompts", ", ".join(file.path for file in options.files))


def _names(paths: Sequence[str]) -> list[str]:
    """Short names that tell files apart: as many of their last folders as it takes."""
    whole = [Path(path).absolute().with_suffix("").parts for path in paths]
    return next(names for n in count(1) if len(set(names := ["/".join(parts[-n:]) for parts in whole])) == len(names))


def _notes(files: Sequence[_Named], repeated: int) -> list[str]:
    notes = [
        f"{f.rows.path}: {f.rows.bad} bad row{' is' if f.rows.bad == 1 else 's are'} set aside, "
        f"{len(f.rows)} are left: {f.rows.complaint()}"
        for f in files
        if f.rows.bad
    ]
    if repeated:
        notes.append(f"{repeated} training rows repeat an evaluation prompt and are left out")
    return notes
