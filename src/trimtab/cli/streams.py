"""Output that never ends a run: whoever reads it may go away."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import TextIO


class Forgiving:
    """A text stream for which a reader that is gone (a closed terminal, ``| head``) is no error: from then on it says nothing.

    All else is the stream's own: a display asks it for its terminal, its width and its encoding.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._gone = False

    def write(self, text: str) -> int:
        if not self._gone:
            try:
                return self._stream.write(text)
            except OSError:
                self._leave()
        return len(text)

    def flush(self) -> None:
        if not self._gone:
            try:
                self._stream.flush()
            except OSError:
                self._leave()

    def _leave(self) -> None:
        """What is still in the stream's buffer would fail again when the interpreter ends: let it go nowhere instead."""
        self._gone = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, self._stream.fileno())
        except OSError:  # a stream without a file of its own
            return
        finally:
            os.close(nowhere)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def forgive() -> None:
    """Make stdout and stderr of this process forgiving."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, Forgiving):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a file's name may be no text, a terminal may lack a letter
            setattr(sys, name, Forgiving(stream))
