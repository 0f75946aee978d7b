"""What was logged is read again, and every file on the disk is whole."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from trimtab.records import TrimtabError
from trimtab.store import rollout_log
from trimtab.store.rollout_log import RolloutLog, last_batch, read, truncate_to


def test_entries_come_back_in_order(tmp_path: Path, same, make_group) -> None:
    with RolloutLog(tmp_path) as log:
        log.append(0, 0, [make_group(0), make_group(1)])
        log.append(0, 0, [make_group(2)], trained=False, reason="expired")
        log.append(1, 1, [make_group(3)])
    entries = list(read(tmp_path))
    assert [(e.batch, e.version, e.trained, e.reason) for e in entries] == [(0, 0, True, ""), (0, 0, False, "expired"), (1, 1, True, "")]
    assert same([e.groups for e in entries], [(make_group(0), make_group(1)), (make_group(2),), (make_group(3),)])
    assert [e.batch for e in read(tmp_path, batches=range(1, 2))] == [1]


def test_a_file_is_written_every_chunk_and_at_each_flush(tmp_path: Path, make_group) -> None:
    log = RolloutLog(tmp_path)
    for batch in range(rollout_log.CHUNK):
        assert list(tmp_path.iterdir()) == []
        log.append(batch, batch, [make_group(batch)])
    log.append(rollout_log.CHUNK, 0, [make_group(99)])
    log.flush()
    log.flush()
    assert [len(pq.read_table(tmp_path / f"{i:06d}.parquet")) for i in (0, 1)] == [2 * rollout_log.CHUNK, 2]
    assert len(list(tmp_path.iterdir())) == 2


def test_long_rollouts_do_not_pile_up_in_memory(tmp_path: Path, make_group, monkeypatch) -> None:
    monkeypatch.setattr(rollout_log, "_TOKENS", 100)
    log = RolloutLog(tmp_path)
    log.append(0, 0, [make_group(0, members=1, length=99)])
    assert list(tmp_path.iterdir()) == []
    log.append(0, 0, [make_group(1, members=1, length=4)])
    assert len(pq.read_table(tmp_path / "000000.parquet")) == 2


def test_a_reopened_log_goes_on_in_new_files(tmp_path: Path, make_group) -> None:
    for batch in range(3):
        with RolloutLog(tmp_path) as log:
            log.append(batch, batch, [make_group(batch)])
    assert [e.groups[0].slot.index for e in read(tmp_path)] == [0, 1, 2]
    (tmp_path / ".tmp-000003.parquet-1").write_bytes(b"half")  # what a crash leaves is in nobody's way
    rows = pq.read_table(tmp_path, columns=["batch", "epoch", "index", "member", "tokens"]).to_pylist()
    assert [(r["batch"], r["index"], r["member"]) for r in rows] == [(b, b, m) for b in range(3) for m in range(2)]


def test_the_last_batch_is_read_off_the_last_file(tmp_path: Path, make_group) -> None:
    assert last_batch(tmp_path) is None
    for batches in ((0, 1), (2, 3)):
        with RolloutLog(tmp_path) as log:
            for batch in batches:
                log.append(batch, batch, [make_group(batch)])
    (tmp_path / "000000.parquet").write_bytes(b"not looked at")
    assert last_batch(tmp_path) == 3


def test_the_cut_splits_a_file_and_moves_whole_ones(tmp_path: Path, same, make_group) -> None:
    folder, orphans = tmp_path / "rollouts", tmp_path / "orphans"
    folder.mkdir()
    log = RolloutLog(folder)
    for batch in range(6):
        log.append(batch, batch, [make_group(batch)])
        if batch % 2:
            log.flush()
    assert truncate_to(folder, 3, orphans) == 6  # rows: two members a group
    assert [(e.batch, e.groups[0].slot.index) for e in read(folder)] == [(0, 0), (1, 1), (2, 2)]
    assert same([e.groups for e in read(orphans)], [(make_group(3),), (make_group(4),), (make_group(5),)])
    assert truncate_to(folder, 3, tmp_path / "more") == 0
    assert not (tmp_path / "more").exists()
    with RolloutLog(folder) as log:
        log.append(3, 3, [make_group(3)])
    assert [e.batch for e in read(folder)] == [0, 1, 2, 3]


def test_a_full_disk_keeps_the_entries_for_another_try(tmp_path: Path, same, make_group, monkeypatch) -> None:
    log = RolloutLog(tmp_path)
    log.append(0, 0, [make_group(0)])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(TrimtabError, match=r"000000\.parquet could not be written because the disk is full"):
            log.flush()
    assert list(tmp_path.iterdir()) == []
    log.flush()
    assert same([e.groups for e in read(tmp_path)], [(make_group(0),)])


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from trimtab.records import *
from trimtab.store.rollout_log import RolloutLog

segment = Segment(tokens=np.arange(9, dtype=np.int32), action_mask=np.arange(9) > 3, behavior_logp=np.full(9, -0.1, np.float32),
                  versions=np.zeros(9, np.int32), turn=np.zeros(9, np.int16), sampling=Sampling())
rollout = Rollout(member=0, segments=(segment,), score=1.0, outcome=Outcome.CORRECT, stop=StopReason.EOS)
log = RolloutLog(Path(sys.argv[1]))
replace, left = os.replace, int(sys.argv[2])

def dying(*args):
    global left
    left -= 1
    if left == 0 and sys.argv[3] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*args)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

os.replace = dying
for batch in range(1000):
    log.append(batch, batch, [Group(slot=Slot(0, batch), prompt=0, attempt=0, seed=0, task="t", source="s", rollouts=(rollout,))])
    if batch % 4 == 3:
        log.flush()
"""


@pytest.mark.parametrize(("when", "batches"), [("before", 8), ("after", 12)])
def test_what_was_flushed_survives_kill_9(tmp_path: Path, when: str, batches: int) -> None:
    """Killed around the rename of the third file: each flushed batch is there once, whole."""
    result = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), "3", when], check=False, timeout=60)
    assert result.returncode == -9
    entries = list(read(tmp_path))
    assert [e.batch for e in entries] == list(range(batches))
    assert all(e.groups[0].rollouts[0].segments[0].tokens.tolist() == list(range(9)) for e in entries)


def test_a_damaged_file_and_a_stray_one_are_history_not_obstacles(tmp_path: Path, make_group, caplog: pytest.LogCaptureFixture) -> None:
    folder, orphans = tmp_path / "rollouts", tmp_path / "orphans"
    folder.mkdir()
    log = RolloutLog(folder)
    for batch in range(3):
        log.append(batch, batch, [make_group(batch)])
        log.flush()
    (folder / "1-copy.parquet").write_bytes((folder / "000001.parquet").read_bytes())
    (folder / "notes.txt").write_text("mine")
    damaged = bytearray((folder / "000001.parquet").read_bytes())
    damaged[len(damaged) // 3] ^= 0xFF
    (folder / "000001.parquet").write_bytes(damaged)
    assert [entry.batch for entry in read(folder)] == [0, 2]
    assert last_batch(folder) == 2
    assert "000001.parquet cannot be read and is left out" in caplog.text
    assert truncate_to(folder, 2, orphans) > 0
    assert sorted(p.name for p in orphans.iterdir()) == ["000001.parquet", "000002.parquet"]
    assert (orphans / "000001.parquet").read_bytes() == damaged
    assert [entry.batch for entry in read(folder)] == [0]
    RolloutLog(folder).append(2, 2, [make_group(2)])
