"""Logs are whole lines whatever happens, and a cut loses none of them."""

import errno
import os
from pathlib import Path

import pytest

from trimtab.records import TrimtabError
from trimtab.store.jsonl import JsonLines, read_jsonl, truncate_to


def write(path: Path, *records: dict) -> None:
    with JsonLines(path) as log:
        for record in records:
            log.append(record)


def test_append_read_and_reopen(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, {"batch": 0, "reward": 0.5}, {"batch": 1, "reward": float("inf")})
    write(path, {"batch": 2, "text": "a\nb ✓"})
    assert list(read_jsonl(path)) == [{"batch": 0, "reward": 0.5}, {"batch": 1, "reward": float("inf")}, {"batch": 2, "text": "a\nb ✓"}]
    assert list(read_jsonl(tmp_path / "absent.jsonl")) == []


def test_a_torn_last_line_is_not_read_and_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, {"batch": 0}, {"batch": 1})
    with path.open("ab") as file:
        file.write(b'{"batch": 2, "rew')
    assert list(read_jsonl(path)) == [{"batch": 0}, {"batch": 1}]
    assert truncate_to(path, 10, tmp_path / "orphans") == 1
    assert (tmp_path / "orphans" / "metrics.jsonl").read_bytes() == b'{"batch": 2, "rew'
    write(path, {"batch": 2})
    assert list(read_jsonl(path)) == [{"batch": 0}, {"batch": 1}, {"batch": 2}]


def test_damaged_lines_in_the_middle_are_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"batch": 0}\n{"ba\xff\n[1]\n{"batch": 2}\n')
    assert list(read_jsonl(path)) == [{"batch": 0}, {"batch": 2}]
    assert "metrics.jsonl: 2 lines are no JSON objects and are left out (the first is line 2)" in caplog.text


def test_the_cut_keeps_the_first_batches_and_moves_the_rest(tmp_path: Path) -> None:
    """Records without a batch stay with what they follow; order is the order of writing in both files."""
    path = tmp_path / "events.jsonl"
    records = [{"kind": "start"}, {"batch": 3}, {"kind": "note"}, {"batch": 5}, {"kind": "late note"}, {"batch": 4}, {"batch": 6}]
    write(path, *records)
    assert truncate_to(path, 5, tmp_path / "o") == 3
    assert list(read_jsonl(path)) == [{"kind": "start"}, {"batch": 3}, {"kind": "note"}, {"batch": 4}]
    assert list(read_jsonl(tmp_path / "o" / "events.jsonl")) == [{"batch": 5}, {"kind": "late note"}, {"batch": 6}]


def test_nothing_beyond_the_cut_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, {"batch": 3})
    before = path.stat().st_mtime_ns
    assert truncate_to(path, 4, tmp_path / "o") == 0
    assert path.stat().st_mtime_ns == before
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("at", [0, 1])
def test_a_crash_in_the_middle_of_a_cut_loses_nothing(tmp_path: Path, monkeypatch, at: int) -> None:
    """Dead before the first or the second of the two renames; the next resume does the rest."""
    path = tmp_path / "events.jsonl"
    write(path, {"batch": 0}, {"batch": 1})
    replace, left = os.replace, at

    def dying(source: Path, target: Path) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        with pytest.raises(KeyboardInterrupt):
            truncate_to(path, 1, tmp_path / "first")
    assert list(read_jsonl(path)) == [{"batch": 0}, {"batch": 1}]
    assert truncate_to(path, 1, tmp_path / "second") == 1
    assert list(read_jsonl(path)) == [{"batch": 0}]
    assert list(read_jsonl(tmp_path / "second" / "events.jsonl")) == [{"batch": 1}]


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "metrics.jsonl"
    real = os.write
    with JsonLines(path) as log:
        log.append({"batch": 0})

        def half(fd, data):
            if len(data) > 5:
                return real(fd, memoryview(data)[:5])
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            with pytest.raises(
                TrimtabError, match=r"metrics\.jsonl could not be written because the disk is full: all earlier records are in it"
            ):
                log.append({"batch": 1, "long": "enough to be cut"})
        log.append({"batch": 1})
    assert list(read_jsonl(path)) == [{"batch": 0}, {"batch": 1}]
