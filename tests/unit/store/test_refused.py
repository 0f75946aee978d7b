"""Files that the machine refuses: one sentence each, whatever is done with the run folder, and nothing is taken for damaged."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trimtab.records import Group, TrimtabError
from trimtab.store import checkpoint, rollout_log
from trimtab.store.durable import TEMP, disk, disk_error, exhausted, refused, write_atomic
from trimtab.store.jsonl import JsonLines, read_jsonl
from trimtab.store.rollout_log import RolloutLog
from trimtab.store.run_folder import RunFolder

MANY = "too many files are open"


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Inside, this process can open no file more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = os.open(os.devnull, os.O_RDONLY)
    held = [first]
    highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
        while True:
            try:
                held.append(os.dup(first))
            except OSError:
                break
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize(
    "use",
    [
        lambda p, g: JsonLines(p / "metrics.jsonl"),
        lambda p, g: list(read_jsonl(p / "events.jsonl")),
        lambda p, g: write_atomic(p / "summary.json", b"{}"),
        lambda p, g: RunFolder.open(p).__enter__(),
        lambda p, g: RunFolder(p, fresh=False).sync_logs(),
        lambda p, g: RolloutLog(p / "rollouts"),
        lambda p, g: list(rollout_log.read(p / "rollouts")),
        lambda p, g: rollout_log.truncate_to(p / "rollouts", 0, p / "orphans"),
        lambda p, g: checkpoint.save(p / "checkpoints", 2, {"x": {"a": 1}}, keep=2),
        lambda p, g: checkpoint.numbers(p / "checkpoints"),
        lambda p, g: checkpoint.load_latest(p / "checkpoints"),
    ],
    ids=["log", "read log", "atomic", "lock", "sync", "rollouts", "read rollouts", "cut rollouts", "save", "numbers", "load"],
)
def test_without_descriptors_it_is_one_sentence_and_nothing_is_moved(
    tmp_path: Path, make_group: Callable[..., Group], use: Callable[[Path, Group], object]
) -> None:
    path = tmp_path / "run"
    with RunFolder.create(path) as folder:
        write_atomic(folder.config_json, b"{}")
        with JsonLines(folder.events) as events:
            events.append({"batch": 0})
        with RolloutLog(folder.rollouts) as log:
            log.append(0, 0, [make_group(0)])
        checkpoint.save(folder.checkpoints, 1, {"x": {"a": 1}}, keep=2)
    before = sorted(str(p) for p in path.rglob("*"))
    with pytest.raises(TrimtabError) as caught, no_descriptors():
        use(path, make_group(0))
    assert MANY in str(caught.value)
    assert not isinstance(caught.value, checkpoint.CorruptCheckpoint), "the checkpoint is sound and must not be passed over"
    # a folder that cannot be listed cannot be removed: what is half-made carries a name that is never loaded
    assert sorted(str(p) for p in path.rglob("*") if TEMP not in str(p)) == before
    assert checkpoint.load_latest(path / "checkpoints").number == 1


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "because the disk is full: kept; free some space and continue with `trimtab resume`"),
        (errno.EDQUOT, "because the disk is full: kept; free some space and continue with `trimtab resume`"),
        (errno.EROFS, "because the file system is read-only: kept; make it writable and continue with `trimtab resume`"),
        (errno.EACCES, "because it is not permitted: kept; change its permissions and continue with `trimtab resume`"),
        (errno.EMFILE, "because too many files are open: kept; raise the limit (ulimit -n) and continue with `trimtab resume`"),
        (errno.ENAMETOOLONG, "because its name is too long: kept; give a shorter one and continue with `trimtab resume`"),
        (errno.ESTALE, f"because {os.strerror(errno.ESTALE)}: kept; make it writable and continue with `trimtab resume`"),
    ],
)
def test_the_sentence_names_cause_and_remedy(number: int, said: str) -> None:
    assert str(disk_error(Path("a/b"), OSError(number, os.strerror(number)), "kept")) == f"a/b could not be written {said}"


def test_only_what_the_machine_refuses_becomes_a_sentence() -> None:
    assert refused(OSError(errno.EPIPE, "Broken pipe"), Path("run")) is None
    said = refused(OSError(errno.EROFS, "Read-only file system", "run/model/x"), Path("run"))
    assert str(said).startswith("run/model/x could not be opened or written because the file system is read-only")
    with pytest.raises(KeyError), disk(Path("run")):
        raise KeyError
    assert exhausted(OSError(errno.EMFILE, ""))
    assert not exhausted(OSError(errno.EIO, ""))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOLCK])
def test_a_folder_that_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    folder = RunFolder.create(tmp_path / "run")

    def lock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("trimtab.store.run_folder.fcntl.flock", lock)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TrimtabError, match="run/lock could not be written because "), folder:
        pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_path_that_no_file_system_has(tmp_path: Path) -> None:
    long = tmp_path / ("n" * 300)
    for use in (RunFolder.create, RunFolder.open, RunFolder.taken):
        with pytest.raises(TrimtabError, match=r"because its name is too long: nothing was .*; give a shorter one,? or choose"):
            use(long)
