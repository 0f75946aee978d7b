"""One writer a run folder, whatever became of the last one."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trimtab.records import TrimtabError
from trimtab.store.durable import write_atomic
from trimtab.store.run_folder import RunFolder

HOLD = """
import os, sys, time
from pathlib import Path
from trimtab.store.run_folder import RunFolder
with RunFolder.create(Path(sys.argv[1])) as folder:
    folder.config_json.write_text("{}")
    child = os.fork() if "fork" in sys.argv else 0
    if not child:
        print(os.getpid(), flush=True)
    time.sleep(60)
"""


def hold(path: Path, *how: str) -> tuple[subprocess.Popen[str], int]:
    """A process that holds the folder, and the pid of its forked child, if it was asked for one."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path), *how], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def test_a_new_run(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "runs" / "a") as folder:
        folder.config_json.write_text("{}")
        assert folder.checkpoints.is_dir()
        assert folder.rollouts.is_dir()
        assert folder.locked
    assert not folder.locked
    with pytest.raises(TrimtabError, match=r"already holds a run: continue it with `trimtab resume"):
        RunFolder.create(tmp_path / "runs" / "a")
    with RunFolder.open(tmp_path / "runs" / "a") as again:
        assert again.locked


def test_there_is_no_run_to_open(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match=r"nowhere holds no run \(it has no config\.json\)"):
        RunFolder.open(tmp_path / "nowhere")


def test_a_place_where_no_folder_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        TrimtabError,
        match=r"file/run could not be created because a part of the path is a file: nothing was begun; move that file away or choose",
    ):
        RunFolder.create(tmp_path / "file" / "run")


def test_a_start_that_died_before_its_configuration_can_be_repeated(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "a"):
        pass
    with RunFolder.create(tmp_path / "a") as folder:
        assert folder.locked


def test_two_writers_in_one_process(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "a")
    with folder:
        folder.config_json.write_text("{}")
        with pytest.raises(TrimtabError, match=f"is in use by process {os.getpid()} on "):
            RunFolder.open(tmp_path / "a").__enter__()
        assert folder.locked


def test_another_process_has_it_until_it_is_killed(tmp_path: Path) -> None:
    """The message names the pid; ``kill -9`` frees the folder at once."""
    process, _ = hold(tmp_path / "a")
    try:
        with pytest.raises(TrimtabError, match=f"is in use by process {process.pid} on .*: stop it or choose another folder"):
            RunFolder.open(tmp_path / "a").__enter__()
    finally:
        kill(process)
    with RunFolder.open(tmp_path / "a") as folder:
        assert folder.locked


def test_a_forked_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    process, child = hold(tmp_path / "a", "fork")
    try:
        with pytest.raises(TrimtabError, match="is in use"):
            RunFolder.open(tmp_path / "a").__enter__()
        kill(process)
        os.kill(child, 0)  # it outlived its parent
        with RunFolder.open(tmp_path / "a") as folder:
            assert folder.locked
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_a_dead_writer_left_half_made_is_cleared(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "a")
    (folder.checkpoints / ".tmp-000050-123").mkdir()
    (folder.checkpoints / ".tmp-000050-123" / "pool.json").touch()
    (folder.path / ".tmp-summary.json-123").touch()
    (folder.rollouts / ".tmp-000001.parquet-123").touch()
    (folder.rollouts / "000000.parquet").touch()
    with folder:
        assert [p for p in folder.path.rglob("*") if p.name.startswith(".tmp")] == []
        assert (folder.rollouts / "000000.parquet").exists()


def test_the_logs_that_are_there_are_synced(tmp_path: Path, monkeypatch) -> None:
    folder = RunFolder.create(tmp_path / "a")
    folder.metrics.touch()
    folder.eval.touch()
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    folder.sync_logs()
    assert synced == [folder.metrics.stat().st_ino, folder.eval.stat().st_ino]


def test_write_atomic_on_a_full_disk_keeps_the_old_bytes(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "summary.json"
    write_atomic(path, b"old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            TrimtabError, match=r"summary\.json could not be written because the disk is full: what was there before is unchanged"
        ):
            write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_a_reader_always_sees_whole_bytes(tmp_path: Path) -> None:
    """A process that replaces a file as fast as it can never shows a part of it."""
    path = tmp_path / "summary.json"
    code = """
import sys
from pathlib import Path
from trimtab.store.durable import write_atomic
for i in range(10**9):
    write_atomic(Path(sys.argv[1]), bytes([65 + i % 2]) * 300_000)
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        deadline = time.monotonic() + 30
        seen: set[bytes] = set()
        while len(seen) < 2 and time.monotonic() < deadline:
            if path.exists():
                data = path.read_bytes()
                assert data in (b"A" * 300_000, b"B" * 300_000)
                seen.add(data[:1])
    finally:
        process.kill()
        process.wait()
    assert seen == {b"A", b"B"}
