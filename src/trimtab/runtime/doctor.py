"""Is this machine, and this configuration on it, fit for a run?"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from trimtab.config.run import LocalOptions, RunConfig
from trimtab.extras import EXTRAS, missing
from trimtab.records import TrimtabError

LEAST_DISK = 2**30
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "pydantic", "pyarrow")


@dataclass(frozen=True, slots=True)
class Checkup:
    """One check: fine, or what to do."""

    name: str
    fine: bool
    says: str


def machine() -> Iterator[Checkup]:
    """What does not depend on a configuration."""
    import torch

    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in PACKAGES)
    yield Checkup("packages", True, versions)
    absent = [f'{extra} (pip install "trimtab[{extra}]")' for extra in EXTRAS if missing(extra)]
    yield Checkup("extras", True, f"not installed: {', '.join(absent)}" if absent else ", ".join(EXTRAS))
    cores, memory = psutil.cpu_count() or 1, psutil.virtual_memory()
    yield Checkup(
        "cores", cores >= 2, f"{cores}; {'learner and sampler run side by side' if cores >= 2 else 'one core: asynchrony cannot help'}"
    )
    yield Checkup("memory", memory.available > 2**30, f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB available")
    free = shutil.disk_usage(Path.cwd()).free
    yield Checkup("disk", free > LEAST_DISK, f"{free / 2**30:.1f} GiB free here")
    yield Checkup("cuda", True, torch.cuda.get_device_name() if torch.cuda.is_available() else "none; the CPU is used")
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    yield Checkup("threads", True, f"OMP_NUM_THREADS {threads}; Trimtab sets one torch thread a process")
    yield _checked("locks", _lock)
    yield _checked("shared memory", _memfd)


def configuration(config: RunConfig) -> Iterator[Checkup]:
    """Load what the run would load: model, task, verifier, norms."""
    from trimtab.runtime.build import build

    if isinstance(config.runtime, LocalOptions):
        cores = psutil.cpu_count() or 1
        wanted = 1 + config.runtime.workers * config.runtime.worker_threads
        yield Checkup(
            "processes", wanted <= cores, f"learner and {config.runtime.workers} worker(s) want {wanted} cores, there are {cores}"
        )
    try:
        parts = build(config)
    except TrimtabError as error:
        yield Checkup("configuration", False, str(error))
        return
    try:
        n = sum(p.numel() for p in parts.policy.model.parameters())
        yield Checkup("model", True, f"{config.model}: {n:,} parameters, context {parts.policy.context}")
        yield Checkup(
            "task", True, f"{parts.sampler.task.name}: {len(parts.sampler.task):,} rows, {parts.sampler.task.eval_size} for evaluation"
        )
        yield Checkup("methods", True, ", ".join(m.name for m in config.chain().methods))
    finally:
        parts.sampler.close()


def _checked(name: str, check: Callable[[], str]) -> Checkup:
    try:
        return Checkup(name, True, check())
    except OSError as error:
        return Checkup(name, False, f"{error}; run folders need a file system that has this")


def _lock() -> str:
    import fcntl

    with tempfile.TemporaryFile() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return "file locks work"


def _memfd() -> str:
    if not hasattr(os, "memfd_create"):
        return "no memfd here: an unlinked temporary file is used"
    os.close(os.memfd_create("trimtab-doctor"))
    return "anonymous shared memory works"
