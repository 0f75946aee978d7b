"""The command line in this process: its exit code and what it prints."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from trimtab.cli.main import main


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one line of an error."""
        (line,) = self.err.splitlines()
        return _said(line)

    @property
    def last(self) -> str:
        """The line of an error at the end of a run that had begun."""
        assert "Traceback" not in self.err
        return _said(self.err.splitlines()[-1])


def _said(line: str) -> str:
    assert line.startswith("trimtab: ")
    return line.removeprefix("trimtab: ")


def cli(*arguments: str | Path) -> Ran:
    """``trimtab ARGUMENTS``."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["trimtab", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Ran(code, out.getvalue(), err.getvalue())


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content; what only names the reader's process is left out."""
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and p.name not in ("lock", "run.log")
    }


@contextlib.contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """What happens inside must leave every file below ``folder`` as it was."""
    before = tree(folder)
    yield
    assert tree(folder) == before
