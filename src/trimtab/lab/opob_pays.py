"""Where OPOB pays: rewards under which "no baseline" does not work either. ``python -m trimtab.lab.opob_pays [--jobs N]``.

    local    every running total that is right given the one before it earns 1/7 where it stands: most of a bad response is right
    signed   the exact final score, -1 for wrong and +1 for right
    shifted  the exact final score, 1 for wrong and 2 for right

times five credits: the group's mean, none, the group's minimum (none, made proof against shifts), OPOB, and all of VCPO. The
quickstart in lockstep at lag 12, lr 5e-4 constant, 200 batches; accuracy always is that of the exact final score. Every cell that
ends is a line of ``OUT/results.jsonl``, so that the same command goes on with an experiment that was interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from trimtab.lab import arms
from trimtab.lab.arms import Cell, Found
from trimtab.records import TrimtabError
from trimtab.report.runfiles import Run

ARMS = {
    "mean": '["seq_tis", "grpo"]',
    "none": '["seq_tis", "b0"]',
    "opob": '["seq_tis", "opob"]',
    "vcpo": '["vcpo"]',
    "min": '["seq_tis", "group_min"]',
}
REWARDS = {
    "local": 'task.shaping={ kind = "local" }',
    "signed": "task.shaping={ scale = 2.0, offset = -1.0 }",
    "shifted": "task.shaping={ offset = 1.0 }",
}
REGIME = ('runtime={ kind = "lockstep", lag = 12 }', "learner.batches=200", 'learner.schedule={ kind = "constant" }')
# Final accuracies, seeds 0 and 1 (mean and OPOB of shifted rewards: seeds 0, 1, 2), of a prototype of this model and loop with an
# initial policy of its own; mean and OPOB do not depend on a shift.
PROTOTYPE = {
    ("local", "mean"): ".00 .00",
    ("local", "none"): ".45 .63",
    ("local", "min"): ".94 .95",
    ("local", "opob"): ".94 .96",
    ("signed", "mean"): ".06 .00 .09",
    ("signed", "none"): ".00 .00",
    ("signed", "opob"): ".92-.96",
    ("shifted", "mean"): ".06 .00 .09",
    ("shifted", "none"): ".19 .13",
    ("shifted", "opob"): ".92-.96",
}
COLUMNS = ("held-out", "last 20", "best 20", "whole run", "lowest ESS/B")


def measure(run: Run) -> dict[str, float]:
    return {
        "held-out": arms.held_out(run),
        "last 20": arms.last(run, "accuracy/train", 20),
        "best 20": float(arms.windows(run, "accuracy/train", 20).max(initial=float("-inf"))),
        "whole run": arms.mean(run, "accuracy/train"),
        "lowest ESS/B": arms.lowest(run, "ess/ratio"),
    }


def cells(rewards: Iterable[str], names: Sequence[str], seeds: Iterable[int]) -> list[Cell]:
    """In the order in which they tell most: reward by reward, seed by seed."""
    grid = [(reward, seed, name) for reward in rewards for seed in seeds for name in names]
    return [Cell(f"{reward}-{name}", seed, (REWARDS[reward], f"methods={ARMS[name]}", *REGIME)) for reward, seed, name in grid]


def table(found: Sequence[Found]) -> str:
    """Markdown: one line a reward and arm, the seeds side by side."""
    lines = [f"| reward | credit | {' | '.join(COLUMNS)} | prototype |", "|---" * (len(COLUMNS) + 3) + "|"]
    for arm in dict.fromkeys(f.arm for f in found):
        reward, name = arm.split("-")
        values = [f.values for f in sorted(found, key=lambda f: f.seed) if f.arm == arm]
        numbers = [" ".join(_short(v[column]) for v in values) for column in COLUMNS]
        lines.append(f"| {reward} | {name} | {' | '.join(numbers)} | {PROTOTYPE.get((reward, name), '–')} |")
    return "\n".join(lines) + "\n"


def _short(x: float) -> str:
    return f"{x:.3f}".replace("0.", ".", 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="OPOB against other baselines under step-level and shifted rewards")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--rewards", nargs="+", choices=REWARDS, default=list(REWARDS))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--out", type=Path, default=Path("runs/opob-pays"))
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides for every cell, as for trimtab train")
    args = parser.parse_args()

    def tell(found: Found) -> None:
        sys.stderr.write(f"{found.arm} seed {found.seed}: {', '.join(f'{k} {v:.3f}' for k, v in found.values.items())}\n")

    grid = cells(args.rewards, args.arms, range(args.seeds))
    try:
        found = arms.run(grid, args.out, measure, jobs=args.jobs, extra=(*arms.LEAN, *args.set), tell=tell)
    except TrimtabError as error:
        sys.stderr.write(f"trimtab: {error}\n")
        raise SystemExit(error.exit_code) from None
    sys.stdout.write(table(found))


if __name__ == "__main__":
    main()
