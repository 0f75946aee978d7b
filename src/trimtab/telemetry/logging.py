"""Log lines for people on stderr, and the same as JSON in a file. Everything logs through ``logging.getLogger(__name__)``."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import TextIO

from trimtab.foreign import printable, printable_lines

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


_FOREIGN = (("trace", "its traceback"), ("printed", "the end of it"))  # extra fields with text of foreign code


def _extra(record: logging.LogRecord) -> dict[str, object]:
    """What the call passed as ``extra``."""
    return {k: v for k, v in vars(record).items() if k not in _STANDARD}


class LineFormatter(logging.Formatter):
    """``12:03:55 WARNING pool: message  key=value``. Foreign text (``trace``, ``printed``) is in the file, if any."""

    def __init__(self, who: str, *, foreign: bool = True) -> None:
        super().__init__()
        self._who, self._foreign = who, foreign

    def format(self, record: logging.LogRecord) -> str:
        room = record.name.removeprefix("trimtab.")
        fields = _extra(record)
        foreign = {words: fields.pop(name) for name, words in _FOREIGN if name in fields}
        extra = "".join(f"  {k}={v}" for k, v in fields.items())
        trace = "\n" + printable_lines(self.formatException(record.exc_info)) if record.exc_info else ""
        for words, text in foreign.items():
            trace += f"\n{printable_lines(str(text))}" if self._foreign else f" ({words} is in run.log)"
        who = f" {self._who}" if self._who else ""
        return f"{self.formatTime(record, '%H:%M:%S')} {record.levelname}{who} {room}: {printable(record.getMessage() + extra)}{trace}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, who, logger, message, the extra fields, and the trace where there is one."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        row: dict[str, object] = {
            "time": stamp,
            "level": record.levelname,
            "who": self._who,
            "logger": record.name,
            "message": record.getMessage(),
        }
        row |= {k: v for k, v in _extra(record).items() if k not in row}
        if record.exc_info:
            row["trace"] = self.formatException(record.exc_info)
        return json.dumps(row, default=str)


class _Stderr(logging.StreamHandler[TextIO]):
    """Whatever ``sys.stderr`` is when a line is written: a live display puts its own there, to keep lines above it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        raise AttributeError("this handler follows sys.stderr")


def configure(level: str = "INFO", file: Path | None = None, who: str = "") -> None:
    """Send what the package logs to stderr, and to ``file`` as JSON lines. ``who`` names the process. Calling again replaces."""
    logger = logging.getLogger("trimtab")
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    stream = _Stderr()
    stream.setFormatter(LineFormatter(who, foreign=file is None))
    logger.addHandler(stream)
    if file is not None:
        handler = logging.FileHandler(file, encoding="utf-8")
        handler.setFormatter(JsonFormatter(who))
        logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
