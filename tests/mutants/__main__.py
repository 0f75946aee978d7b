"""Break the code on purpose, one mutant at a time, and see that the named test notices: ``python -m tests.mutants [WORD...]``.

Each mutant gets a copy of the sources and runs one test there. The same tests run once on an unbroken copy first: a test that
fails by itself kills nothing. Exit code 1 if a mutant survives, or if its code is not found exactly once.
"""
# ruff: noqa: T201

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .mutant import INVARIANTS, Mutant
from .source import Sources
from .table import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src", "tests", "examples", "pyproject.toml")
LIMIT_S = 120  # a mutant that makes its test hang is noticed too
FAILED = 1  # pytest's exit code for tests that ran and failed; any other means the test did not run


@dataclass(frozen=True, slots=True)
class Verdict:
    mutant: Mutant
    outcome: str
    seconds: float


def apply(mutant: Mutant, root: Path) -> None:
    path, text = Sources(root / "src" / "trimtab").mutated(mutant)
    path.write_text(text)


def run(root: Path, tests: Sequence[str]) -> int:
    """pytest's exit code on the copy at ``root``."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--timeout={LIMIT_S}", *tests]
    env = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    if done.returncode not in (0, FAILED):
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
    return done.returncode


def copy(to: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, to / name)
    return to


def judge(mutant: Mutant) -> Verdict:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trimtab-mutant-") as scratch:
        root = copy(Path(scratch))
        try:
            apply(mutant, root)
        except ValueError as error:
            return Verdict(mutant, str(error), 0.0)
        code = run(root, [mutant.test])
    outcome = {FAILED: "killed", 0: "SURVIVED"}.get(code, f"NOT RUN (pytest exit code {code})")
    return Verdict(mutant, outcome, time.monotonic() - begun)


def control(chosen: Sequence[Mutant]) -> bool:
    """The tests pass on the code as it is, and it is the copy that they test."""
    with tempfile.TemporaryDirectory(prefix="trimtab-mutant-") as scratch:
        root = copy(Path(scratch))
        env = {**os.environ, "PYTHONPATH": str(root / "src")}
        found = subprocess.run(
            [sys.executable, "-c", "import trimtab; print(trimtab.__file__)"], cwd=root, env=env, capture_output=True, text=True, check=True
        )
        if not found.stdout.startswith(str(root)):
            print(f"tests would run on {found.stdout.strip()}, not on the copy", file=sys.stderr)
            return False
        return run(root, sorted({m.test for m in chosen})) == 0


def main(words: Sequence[str]) -> int:
    chosen = [m for m in MUTANTS if not words or any(w in f"{m.name} {m.where}" for w in words)]
    if not control(chosen):
        print("the tests do not pass on the code as it is", file=sys.stderr)
        return 1
    print(f"{'invariant':<50} {'mutant':<54} {'killed by':<96} {'seconds':>7}")
    alive = 0
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1))) as pool:
        for v in pool.map(judge, chosen):
            alive += v.outcome != "killed"
            invariant = f"{v.mutant.invariant} {INVARIANTS[v.mutant.invariant]}"
            by = v.mutant.test.rpartition("::")[2] if v.outcome == "killed" else v.outcome
            print(f"{invariant:<50} {v.mutant.name:<54} {by:<96} {v.seconds:>7.1f}", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} mutants killed")
    return int(alive > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
