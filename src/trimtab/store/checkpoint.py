"""A checkpoint: the state after ``number`` consumed batches, in a folder that either verifies or is passed over.

Saving makes ``.tmp-NNNNNN-<pid>``, writes and fsyncs every file, the manifest with their digests last, fsyncs the folder,
renames it to ``NNNNNN``, fsyncs the parent, and reads everything back. Only then do older checkpoints go. So at every moment at
least one checkpoint that verifies is there, and whatever a crash leaves half-made carries a name that is never loaded.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from trimtab.records import TrimtabError
from trimtab.store.codec import groups_to_table, table_to_groups, to_parquet
from trimtab.store.durable import TEMP, disk, disk_error, exhausted, sync, write_file
from trimtab.store.tree import Flat, StateTree, flatten, pack, unflatten, unpack

log = logging.getLogger(__name__)

FORMAT = 1
MANIFEST = "manifest.json"
_DIGEST = 32  # bytes
_NAME = re.compile(r"\d{6,}")
_PART = re.compile(r"[a-z][a-z0-9_]*")


class CorruptCheckpoint(TrimtabError):
    """A checkpoint that does not verify; the message names the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What was loaded. ``passed_over``: newer checkpoints that did not verify, each with the file and the reason."""

    number: int
    parts: Mapping[str, StateTree]
    passed_over: Mapping[int, str]


def save(folder: Path, number: int, parts: Mapping[str, StateTree], *, keep: int) -> Path:
    """Make the state after ``number`` consumed batches durable, verify it, then remove all but the ``keep`` newest.

    A checkpoint of that number which is already there and verifies is left as it is.

    Raises:
        TrimtabError: it could not be written (full disk); older checkpoints are untouched and nothing half-written stays.
        TypeError: a part holds something that cannot be stored exactly; the message names its place.
    """
    final = folder / f"{number:06d}"
    temp = folder / f"{TEMP}{final.name}-{os.getpid()}"
    try:
        if final.exists():
            try:
                _verify(folder, number)
                return final
            except CorruptCheckpoint as error:
                log.warning("checkpoint %d is written again: %s", number, error)
                os.rename(final, folder / f"{TEMP}{final.name}-corrupt")
        temp.mkdir(parents=True)
        manifest: dict[str, str] = {}
        for name, data in _files(parts):
            write_file(temp / name, data)
            manifest[name] = hashlib.blake2b(data, digest_size=_DIGEST).hexdigest()
        write_file(temp / MANIFEST, json.dumps({"format": FORMAT, "number": number, "blake2b": manifest}, indent=1).encode())
        sync(temp)
        os.rename(temp, final)
        sync(folder)
    except OSError as error:
        older = [n for n in numbers(folder) if n < number]
        kept = f"checkpoint {older[-1]} is intact" if older else "there is no earlier checkpoint"
        raise disk_error(final, error, kept) from error
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    _verify(folder, number)
    with disk(folder, f"checkpoint {number} is intact"):
        for old in numbers(folder)[:-keep]:
            if old < number:
                _remove(folder, old)
    return final


def numbers(folder: Path) -> list[int]:
    """The checkpoints that are there, oldest first; they may still fail to verify."""
    with disk(folder, what="read"):
        return sorted(int(p.name) for p in folder.iterdir() if _NAME.fullmatch(p.name)) if folder.is_dir() else []


def load(folder: Path, number: int) -> Mapping[str, StateTree]:
    """The parts of one checkpoint.

    Raises:
        CorruptCheckpoint: a file is missing or differs from the manifest.
        TrimtabError: there is no such checkpoint, or another format wrote it.
    """
    if number not in numbers(folder):
        raise TrimtabError(f"{folder} has no checkpoint {number}: it has {numbers(folder) or 'none'}")
    path = folder / f"{number:06d}"
    names = _verify(folder, number)
    parts: dict[str, StateTree] = {}
    with disk(path, what="read"):
        for part in (name.removesuffix(".json") for name in names if name.endswith(".json")):
            flat = Flat(skeleton=json.loads((path / f"{part}.json").read_bytes()))
            if f"{part}.safetensors" in names:
                flat.arrays = unpack((path / f"{part}.safetensors").read_bytes())
            if f"{part}.parquet" in names:
                flat.groups = table_to_groups(pq.read_table(path / f"{part}.parquet"))
            parts[part] = unflatten(flat)
    return parts


def load_latest(folder: Path) -> Checkpoint:
    """The newest checkpoint that verifies; what was passed over on the way is logged and returned.

    Raises:
        TrimtabError: no checkpoint verifies.
    """
    passed_over: dict[int, str] = {}
    for number in reversed(numbers(folder)):
        try:
            return Checkpoint(number=number, parts=load(folder, number), passed_over=passed_over)
        except CorruptCheckpoint as error:
            log.warning("passing over checkpoint %d: %s", number, error)
            passed_over[number] = str(error)
    if passed_over:
        raise TrimtabError(f"{folder} has no checkpoint that can be loaded: {'; '.join(passed_over.values())}; restore one from a copy")
    raise TrimtabError(f"{folder} has no checkpoint: the run ended before its first; start it again with `trimtab train`")


def _files(parts: Mapping[str, StateTree]) -> Iterator[tuple[str, bytes | memoryview]]:
    """``part.json`` always, ``part.safetensors`` and ``part.parquet`` where there is something to put there; one at a time."""
    for part, tree in parts.items():
        if not _PART.fullmatch(part):
            raise ValueError(f"checkpoint part {part!r}: a name is lower-case letters, digits and underscores")
        flat = flatten(tree, part)
        yield f"{part}.json", json.dumps(flat.skeleton).encode()
        if flat.arrays:
            yield f"{part}.safetensors", pack(flat.arrays)
        if flat.groups:
            yield f"{part}.parquet", to_parquet(groups_to_table(flat.groups))


def _verify(folder: Path, number: int) -> Collection[str]:
    """Read every file back against the manifest; the names of the files."""
    path = folder / f"{number:06d}"
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        form, stated, digests = manifest["format"], manifest["number"], dict(manifest["blake2b"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, OSError) and exhausted(error):
            raise disk_error(path / MANIFEST, error, what="read") from error
        raise CorruptCheckpoint(f"{path / MANIFEST} cannot be read ({error})") from error
    if form != FORMAT:
        raise TrimtabError(f"{path} has checkpoint format {form}, this Trimtab reads format {FORMAT}: use the version that wrote it")
    if stated != number:
        raise CorruptCheckpoint(f"{path / MANIFEST} says it is checkpoint {stated}")
    for name, digest in digests.items():
        try:
            with open(path / name, "rb") as file:
                found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_DIGEST)).hexdigest()
        except OSError as error:
            if exhausted(error):
                raise disk_error(path / name, error, what="read") from error
            raise CorruptCheckpoint(f"{path / name} cannot be read ({error.strerror})") from error
        if found != digest:
            raise CorruptCheckpoint(f"{path / name} is corrupt (its digest differs from the manifest's)")
    return digests.keys()


def _remove(folder: Path, number: int) -> None:
    """First out of the names that are loaded, then file by file."""
    doomed = folder / f"{TEMP}{number:06d}-old"
    os.rename(folder / f"{number:06d}", doomed)
    shutil.rmtree(doomed)
