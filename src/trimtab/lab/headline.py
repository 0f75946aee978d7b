"""The headline: synchronous, sequence-TIS and VCPO at lag 64, one figure. ``python -m trimtab.lab.headline [--seeds N]``.

Same initial checkpoint, prompts, group size, optimizer, learning rate, std rule, reduction and number of batches; only lag and
methods differ. Each arm is an ordinary run folder below ``runs/headline`` that ``trimtab report`` and ``resume`` understand.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

import psutil

from trimtab.records import TrimtabError
from trimtab.report.summary import Summary

LAG = 64


@dataclass(frozen=True, slots=True)
class Arm:
    """One curve: its name in the printed line, its label in the figure, its overrides."""

    name: str
    label: str
    lag: int
    methods: str


ARMS = (
    Arm("sync", "synchronous", 0, '["seq_tis", "grpo"]'),
    Arm("tis", "sequence-TIS", LAG, '["seq_tis", "grpo"]'),
    Arm("vcpo", "VCPO", LAG, '["vcpo"]'),
)


def _command(arm: Arm, seed: int, root: Path, extra: Sequence[str]) -> list[str]:
    overrides = [
        f"name={arm.name}-seed{seed}",
        f"seed={seed}",
        f"methods={arm.methods}",
        f'runtime={{kind = "lockstep", lag = {arm.lag}}}',
        *extra,
    ]
    return [sys.executable, "-m", "trimtab.cli.main", "train", "quickstart", "--runs", str(root), *overrides]


def _run_all(jobs: Sequence[tuple[Arm, int]], root: Path, extra: Sequence[str], at_once: int) -> None:
    """All jobs, ``at_once`` processes of one thread each."""
    waiting = list(jobs)
    running: dict[subprocess.Popen[bytes], tuple[Arm, int, TextIOWrapper]] = {}
    root.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    while waiting or running:
        while waiting and len(running) < at_once:
            arm, seed = waiting.pop(0)
            log = (root / f"{arm.name}-seed{seed}.txt").open("w")
            running[subprocess.Popen(_command(arm, seed, root, extra), stdout=log, stderr=log, env=env)] = (arm, seed, log)
        for process in [p for p in running if p.poll() is not None]:
            arm, seed, log = running.pop(process)
            log.close()
            if process.returncode != 0:
                for other in running:
                    other.kill()
                raise TrimtabError(f"arm {arm.name} with seed {seed} ended with exit code {process.returncode}; see {log.name}")
        time.sleep(0.2)


def headline(root: Path, seeds: int, extra: Sequence[str]) -> dict[str, list[float]]:
    """Run the arms, draw the figure; final held-out accuracies by arm, in order of seed."""
    from trimtab.report.figure import comparison_figure

    if root.exists():
        shutil.rmtree(root)
    jobs = [(arm, seed) for seed in range(seeds) for arm in ARMS]
    _run_all(jobs, root, extra, max(1, psutil.cpu_count() or 1))
    found = {arm.name: [Summary.read(root / f"{arm.name}-seed{s}").accuracy_after or 0.0 for s in range(seeds)] for arm in ARMS}
    folders = {arm.label: root / f"{arm.name}-seed0" for arm in ARMS}
    comparison_figure(folders, root / "headline.png", root / "headline.svg", f"Two of three learn from rollouts {LAG} batches old")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="sync, sequence-TIS and VCPO at lag 64: one figure")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/headline"))
    parser.add_argument("overrides", nargs="*", help="key=value, as for trimtab train")
    args = parser.parse_args()
    begun = time.perf_counter()
    try:
        found = headline(args.out, args.seeds, args.overrides)
    except TrimtabError as error:
        sys.stderr.write(f"trimtab: {error}\n")
        raise SystemExit(error.exit_code) from None
    for arm in ARMS:
        if args.seeds > 1:
            sys.stdout.write(f"{arm.name}: {', '.join(f'{x:.3f}' for x in found[arm.name])}\n")
    means = ", ".join(f"{arm.name} {sum(found[arm.name]) / len(found[arm.name]):.3f}" for arm in ARMS)
    sys.stdout.write(f"{means}\n")
    sys.stdout.write(f"figure {args.out / 'headline.png'} ({time.perf_counter() - begun:.0f} s)\n")


if __name__ == "__main__":
    main()
