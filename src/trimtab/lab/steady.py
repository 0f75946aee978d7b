"""What keeps VCPO up at a constant learning rate of 5e-4: arms x lags x seeds of the preset ``steady``, in lockstep.

    python -m trimtab.lab.steady                        steady, vcpo and the controls; 3 seeds; lag 12
    python -m trimtab.lab.steady --arms steady --lags 12 64
    python -m trimtab.lab.steady --harder               what the clip does when harder data arrive

Arms differ in their methods only. Every cell that ends is a line of ``OUT/results.jsonl``, so that the experiment can be interrupted
and gone on with by the same command.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from trimtab.config.load import override, read_resolved
from trimtab.lab import arms
from trimtab.lab.arms import Cell, Found
from trimtab.records import TrimtabError
from trimtab.report.runfiles import Run, load
from trimtab.store.durable import write_atomic
from trimtab.store.run_folder import RunFolder

ARMS = {
    "steady": '["vcpo", "median_clip"]',
    "vcpo": '["vcpo"]',
    "tis_clip": '["seq_tis", "grpo", "norm_clip", "median_clip"]',
    "b0_clip": '["seq_tis", "b0", "norm_clip", "median_clip"]',
    "opob_clip": '["seq_tis", "opob", "norm_clip", "median_clip"]',  # without ESS
    "clip3": '["vcpo", { name = "median_clip", factor = 3.0 }]',
    "clip10": '["vcpo", { name = "median_clip", factor = 10.0 }]',
    "zclip": '["vcpo", "zclip"]',
    "min_ess": '["vcpo", { name = "min_ess", threshold = 0.5 }]',
    "update_cap": '["vcpo", "update_cap"]',
}
BEGUN, WINDOW, LOW, LAST = 150, 10, 0.90, 200  # a window of 10 batches below 0.90 after batch 150 is a fall

# Phase two of --harder: prompts of one term more, of which the policy gets a few percent right, among those it has learned.
HARDER = "task.config={ min_terms = 8, max_terms = 9, min_digits = 1, max_digits = 1 }"
VARIANTS = {"clip": '["vcpo", "median_clip"]', "no clip": '["vcpo", { name = "median_clip", factor = 1e9 }]'}


def measure(run: Run) -> dict[str, float]:
    """What the question is about; NaN where the run was too short for it."""
    low = arms.windows(run, "accuracy/train", WINDOW)[BEGUN:]
    return {
        "held_out": arms.held_out(run),
        "last_200": arms.last(run, "accuracy/train", LAST),
        "lowest": float(low.min()) if len(low) else float("nan"),
        "below_0.90": float((low < LOW - 1e-9).sum()),
        "min_ess": arms.lowest(run, "ess/ratio"),
        "clipped": _mean(np.concatenate([run.column(f"method/{name}/clipped") for name in ("median_clip", "zclip")])),
        "batches": float(len(run.metrics)),
    }


def steady(root: Path, names: Sequence[str], lags: Sequence[int], seeds: int, extra: Sequence[str], jobs: int) -> list[Found]:
    """Run the grid, seed by seed, so that every arm has an answer early."""
    grid = [(name, lag, seed) for seed in range(seeds) for lag in lags for name in names]
    cells = [Cell(f"{name}-k{lag}", seed, (f"methods={ARMS[name]}", f"runtime.lag={lag}")) for name, lag, seed in grid]
    return arms.run(cells, root, measure, preset="steady", jobs=jobs, extra=(*arms.LEAN, *extra), tell=_tell)


def harder(root: Path, seeds: int, before: int, after: int, extra: Sequence[str], jobs: int) -> dict[str, list[Mapping[str, float]]]:
    """Train ``before`` batches of ``steady``, then go on with harder prompts: with the clip, and with one that never acts.

    Weights, moments, the clip's window and the batches in flight are those of the switch: each variant is a copy of the run whose
    configuration is changed before it is resumed.
    """
    bases = [Cell("base", seed, (f"learner.batches={before}",)) for seed in range(seeds)]
    arms.run(bases, root, measure, preset="steady", jobs=jobs, extra=(*arms.LEAN, *extra), tell=_tell)
    jobs_of = [(root / base.name, variant) for base in bases for variant in VARIANTS]
    with ThreadPoolExecutor(jobs) as pool:
        folders = list(pool.map(lambda job: _go_on(job[0], job[1], before + after), jobs_of))
    out: dict[str, list[Mapping[str, float]]] = {variant: [] for variant in VARIANTS}
    for (_, variant), folder in zip(jobs_of, folders, strict=True):
        out[variant].append(recovery(load(folder, variant), before))
    return out


def _go_on(base: Path, variant: str, batches: int) -> Path:
    """A copy of a finished run that goes on with harder prompts; one that is already done is left."""
    folder = base.with_name(f"{base.name}-{variant.replace(' ', '_')}")
    if folder.exists():
        found = load(folder, variant)
        if found.summary is not None and found.summary.status == "done" and found.summary.batches >= batches:
            return folder
        shutil.rmtree(folder)
    shutil.copytree(base, folder)
    path = RunFolder.open(folder).config_json
    table = override(read_resolved(path), [f"methods={VARIANTS[variant]}", HARDER])
    write_atomic(path, json.dumps(table).encode())
    command = [sys.executable, "-m", "trimtab.cli.main", "resume", str(folder), f"batches={batches}"]
    done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise TrimtabError(f"{folder} ended with exit code {done.returncode}: {done.stderr.decode().strip().splitlines()[-1]}")
    return folder


def recovery(run: Run, before: int) -> dict[str, float]:
    """How a run took the switch at batch ``before``: accuracies early and late after it, the lowest window, what was clipped."""
    accuracy = run.column("accuracy/train")
    after = accuracy[before:]
    low = arms.windows(run, "accuracy/train", WINDOW)[before:]
    return {
        "before": _mean(accuracy[:before][-50:]),
        "first_50": _mean(after[:50]),
        "from_100_to_150": _mean(after[100:150]),
        "last_50": _mean(after[-50:]),
        "lowest": float(low.min()) if len(low) else float("nan"),
        "min_ess": float(np.nanmin(run.column("ess/ratio")[before:])),
        "clipped_first_50": _mean(run.column("method/median_clip/clipped")[before : before + 50]),
        "clipped": _mean(run.column("method/median_clip/clipped")[before:]),
        "held_out": arms.held_out(run),
    }


def _mean(x: np.ndarray) -> float:
    """Of what is known; NaN where nothing is."""
    known = x[np.isfinite(x)]
    return float(known.mean()) if len(known) else float("nan")


def _tell(found: Found) -> None:
    sys.stderr.write(f"{found.arm} seed {found.seed}: " + ", ".join(f"{k} {v:.3g}" for k, v in found.values.items()) + "\n")


def table(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Markdown: one line an arm, one number a seed in each cell."""
    columns = list(next(iter(rows.values()))[0])
    lines = [f"| arm | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for arm, seeds in rows.items():
        lines.append(f"| {arm} | {' | '.join(', '.join(f'{values[c]:.3g}' for values in seeds) for c in columns)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="what keeps VCPO up at a constant learning rate")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--lags", nargs="+", type=int, default=[12])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--harder", action="store_true", help="the switch to harder prompts, after 400 of the batches")
    parser.add_argument("--before", type=int, default=400, help="batches before that switch")
    parser.add_argument("--out", type=Path, default=Path("runs/steady"))
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides for every cell, as for trimtab train")
    args = parser.parse_args()
    try:
        if args.harder:
            out = harder(args.out / "harder", args.seeds, args.before, args.batches - args.before, args.set, args.jobs)
        else:
            extra = (f"learner.batches={args.batches}", *args.set)
            found = steady(args.out, args.arms, args.lags, args.seeds, extra, args.jobs)
            out = {arm: [f.values for f in found if f.arm == arm] for arm in dict.fromkeys(f.arm for f in found)}
    except TrimtabError as error:
        sys.stderr.write(f"trimtab: {error}\n")
        raise SystemExit(error.exit_code) from None
    sys.stdout.write(table(out))


if __name__ == "__main__":
    main()
