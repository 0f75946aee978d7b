"""A checkpoint is whole or is not there; the newest one that verifies is what a resume gets."""

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from trimtab.records import TrimtabError
from trimtab.store.checkpoint import CorruptCheckpoint, load, load_latest, numbers, save


def parts(n: int, make_group) -> dict[str, object]:
    return {
        "learner": {"weights": {"w": torch.full((4, 3), n / 7, dtype=torch.bfloat16), "scale": torch.tensor(float(n))}, "step": n},
        "pool": {
            "entered": np.arange(n, n + 5),
            "waiting": [{"group": make_group(n), "order": n}, {"group": make_group(n + 1), "order": n + 1}],
        },
        "run": {"incarnation": 0, "betas": (0.9, 0.999)},
    }


def test_everything_comes_back(tmp_path: Path, same, make_group) -> None:
    save(tmp_path, 50, parts(50, make_group), keep=2)
    loaded = load_latest(tmp_path)
    assert (loaded.number, loaded.passed_over) == (50, {})
    assert same(dict(loaded.parts), parts(50, make_group))


def test_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """A real optimizer: int keys, tuples, 0-d steps, moments."""

    def steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, a: int, b: int) -> None:
        for i in range(a, b):
            optimizer.zero_grad()
            model(torch.full((2, 3), float(i))).square().sum().backward()
            optimizer.step()

    def fresh() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    model, optimizer = fresh()
    steps(model, optimizer, 0, 3)
    save(tmp_path, 3, {"learner": {"model": model.state_dict(), "optimizer": optimizer.state_dict()}}, keep=1)
    steps(model, optimizer, 3, 6)

    other, other_optimizer = fresh()
    state = load_latest(tmp_path).parts["learner"]
    other.load_state_dict(state["model"])
    other_optimizer.load_state_dict(state["optimizer"])
    steps(other, other_optimizer, 3, 6)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for n in (1, 2, 3, 4):
        save(tmp_path, n, {"run": {"n": n}}, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000003", "000004"]
    save(tmp_path, 5, {"run": {"n": 5}}, keep=1)
    assert numbers(tmp_path) == [5]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["learner.safetensors", "pool.parquet", "pool.json", "manifest.json"])
@pytest.mark.parametrize("damage", [flip, Path.unlink], ids=["flip", "unlink"])
def test_a_damaged_checkpoint_is_passed_over_by_name(tmp_path: Path, same, make_group, caplog, name: str, damage) -> None:
    save(tmp_path, 50, parts(50, make_group), keep=2)
    save(tmp_path, 100, parts(100, make_group), keep=2)
    damage(tmp_path / "000100" / name)
    with pytest.raises(CorruptCheckpoint, match=f"000100/{name if name != 'manifest.json' else ''}"):
        load(tmp_path, 100)
    with caplog.at_level(logging.WARNING):
        loaded = load_latest(tmp_path)
    assert loaded.number == 50
    assert same(dict(loaded.parts), parts(50, make_group))
    assert list(loaded.passed_over) == [100]
    assert "000100" in loaded.passed_over[100]
    assert "passing over checkpoint 100" in caplog.text


def test_a_disk_that_lies_is_found_out_before_the_old_one_goes(tmp_path: Path, monkeypatch) -> None:
    """The write succeeds, the bytes are others: the save fails and the previous checkpoint is still what a resume gets."""
    save(tmp_path, 1, {"run": "old"}, keep=1)
    write = os.write

    def lying(fd: int, data: bytes) -> int:
        return write(fd, bytes(data).replace(b"new", b"nev"))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lying)
        with pytest.raises(CorruptCheckpoint, match=r"000002/run\.json is corrupt"):
            save(tmp_path, 2, {"run": "new"}, keep=1)
    assert load_latest(tmp_path).parts["run"] == "old"


def test_nothing_to_load_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match=r"has no checkpoint: the run ended before its first"):
        load_latest(tmp_path / "checkpoints")
    save(tmp_path, 1, {"run": 1}, keep=1)
    flip(tmp_path / "000001" / "run.json")
    with pytest.raises(TrimtabError, match=r"no checkpoint that can be loaded: .*000001/run\.json is corrupt"):
        load_latest(tmp_path)
    with pytest.raises(TrimtabError, match=r"has no checkpoint 7: it has \[1\]"):
        load(tmp_path, 7)


def test_another_format_is_refused_not_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 1, {"run": 1}, keep=2)
    save(tmp_path, 2, {"run": 2}, keep=2)
    manifest = tmp_path / "000002" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(TrimtabError, match="format 9, this Trimtab reads format 1"):
        load_latest(tmp_path)


def test_a_number_is_saved_once_unless_it_is_damaged(tmp_path: Path) -> None:
    save(tmp_path, 1, {"run": "first"}, keep=2)
    save(tmp_path, 1, {"run": "second"}, keep=2)
    assert load(tmp_path, 1)["run"] == "first"
    flip(tmp_path / "000001" / "run.json")
    save(tmp_path, 1, {"run": "third"}, keep=2)
    assert load(tmp_path, 1)["run"] == "third"


def test_a_state_that_cannot_be_stored_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"pool\.ids is a set"):
        save(tmp_path, 1, {"run": 1, "pool": {"ids": {1}}}, keep=2)
    assert list(tmp_path.iterdir()) == []


def full_after(name: str, calls: int) -> Callable[..., object]:
    """``os.name``, but after ``calls`` more calls the disk is full; a write still takes one byte, an open that creates nothing works."""
    real = getattr(os, name)

    def call(*args: object, **kwargs: object) -> object:
        nonlocal calls
        if name == "open" and not args[1] & os.O_CREAT:
            return real(*args, **kwargs)
        calls -= 1
        if calls >= 0:
            return real(*args, **kwargs)
        if name == "write":
            real(args[0], memoryview(args[1])[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    return call


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename", "mkdir"])
def test_a_full_disk_at_any_moment_loses_nothing(tmp_path: Path, same, make_group, monkeypatch, call: str) -> None:
    """The disk is full from the first call of the kind on, from the second, ... until a save gets through."""
    save(tmp_path, 50, parts(50, make_group), keep=2)
    for calls in range(100):
        message = None
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full_after(call, calls))
            try:
                save(tmp_path, 100, parts(100, make_group), keep=2)
            except TrimtabError as error:
                message = str(error)
        assert not list(tmp_path.glob(".tmp-*"))
        assert same(dict(load(tmp_path, 50)), parts(50, make_group))
        if 100 in numbers(tmp_path):  # at most the last fsync failed
            break
        assert message is not None
        assert "because the disk is full: checkpoint 50 is intact; free some space" in message
    assert calls == {"open": 7, "write": 7, "fsync": 8, "rename": 1, "mkdir": 1}[call]  # six files and the manifest; the folder
    assert same(dict(load_latest(tmp_path).parts), parts(100, make_group))
