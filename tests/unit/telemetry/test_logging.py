"""Log lines: for people on stderr, as JSON in a file."""

import io
import json
import logging
import sys
from pathlib import Path

import pytest

from trimtab.telemetry.logging import configure


@pytest.fixture(autouse=True)
def _restore():
    logger = logging.getLogger("trimtab")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    for handler in logger.handlers:
        handler.close()
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_a_line_says_when_how_bad_who_where_what(tmp_path, capsys):
    configure("info", tmp_path / "log.jsonl", who="worker-1")
    configure("info", tmp_path / "log.jsonl", who="worker-1")  # again: still one line a message
    log = logging.getLogger("trimtab.pool.admission")
    log.info("slot freed", extra={"slot": 3})
    log.debug("not shown")
    try:
        raise OSError("no room")
    except OSError:
        log.exception("write failed")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("INFO worker-1 pool.admission: slot freed  slot=3")
    assert lines[-1] == "OSError: no room"
    first, second = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert (first["level"], first["who"], first["logger"], first["message"], first["slot"]) == (
        "INFO",
        "worker-1",
        "trimtab.pool.admission",
        "slot freed",
        3,
    )
    assert "OSError: no room" in second["trace"]


def test_lines_go_to_whatever_stderr_is_now(monkeypatch):
    configure("info", who="learner")
    display = io.StringIO()  # as a live display puts in its place
    monkeypatch.setattr(sys, "stderr", display)
    logging.getLogger("trimtab.runtime").warning("worker-0 died")
    assert display.getvalue().endswith("WARNING learner runtime: worker-0 died\n")


@pytest.mark.parametrize("to_file", [True, False])
def test_a_traceback_of_somebody_else_goes_to_the_file_or_else_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], to_file: bool
) -> None:
    file = tmp_path / "run.log"
    configure("INFO", file if to_file else None, "w1")
    logging.getLogger("trimtab.tasks").warning("it failed", extra={"trace": "Traceback ...\nValueError: no"})
    shown = capsys.readouterr().err.rstrip()
    if to_file:
        assert shown.endswith("WARNING w1 tasks: it failed (its traceback is in run.log)")
        assert json.loads(file.read_text())["trace"] == "Traceback ...\nValueError: no"
    else:
        assert shown.endswith("WARNING w1 tasks: it failed\nTraceback ...\nValueError: no")
