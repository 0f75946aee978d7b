"""Finished runs on the disk: what replaces what, what the dead leave, who holds a key."""

from __future__ import annotations

import os
from pathlib import Path

from trimtab.lab.store import Meta, Store


def finished(store: Store, key: str, wall_s: float = 1.0) -> Meta:
    part = store.begin(key)
    (part / "summary.json").write_text("{}")
    return store.finish(part, "train", wall_s, 0.5)


def names(store: Store) -> list[str]:
    return sorted(p.name for p in store.root.iterdir())


def test_what_is_kept_of_a_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert not store.has("k")
    part = store.begin("k")
    (part / "summary.json").write_text("{}")
    (part / "model").mkdir()
    meta = store.finish(part, "train", 1.0, 0.5)
    assert store.has("k")
    assert Meta.read(store.folder("k")) == meta
    assert sorted(p.name for p in store.folder("k").iterdir()) == ["cell.json", "summary.json"]


def test_a_run_takes_the_place_of_an_older_one_and_of_what_is_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finished(store, "k")
    first = store.stamp("k")
    part = store.begin("k")
    assert store.stamp("k") == first is not None
    store.finish(part, "train", 9.0, 9.0)
    assert store.stamp("k") != first
    assert Meta.read(store.folder("k")).wall_s == 9.0
    (store.folder("torn") / "model").mkdir(parents=True)  # half deleted
    assert store.stamp("torn") is None
    finished(store, "torn")
    assert store.has("torn")
    assert names(store) == ["k", "torn"]


def test_the_dead_are_swept(tmp_path: Path) -> None:
    store, dead = Store(tmp_path), 999999999
    living = tmp_path / "cells" / f"k.part-{os.getppid()}"
    for name in (living.name, f"k.part-{dead}", f"other.part-{dead}"):
        (tmp_path / "cells" / name / "checkpoints").mkdir(parents=True)
    for key in ("torn", "replaced"):  # died between the renames of finish; died after them
        finished(store, key, 7.0)
        store.folder(key).rename(store.root / f"{key}.old-{dead}")
    finished(store, "replaced", 8.0)
    store.sweep()
    assert names(store) == [living.name, "replaced", "torn"]
    assert [Meta.read(store.folder(key)).wall_s for key in ("torn", "replaced")] == [7.0, 8.0]


def test_a_key_is_one_process_at_a_time(tmp_path: Path) -> None:
    one, other = Store(tmp_path), Store(tmp_path)
    held = one.lock("k")
    assert held is not None
    assert other.lock("k") is None
    free = other.lock("other")
    assert free is not None
    held.release()
    taken = other.lock("k")
    assert taken is not None
    assert one.lock("k") is None
    taken.release()
    free.release()
    assert names(one) == []
