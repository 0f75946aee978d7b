"""A guard of the numbers behind stored cells: short runs, and what was sampled and measured in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from support import runs
from trimtab.config.load import override, read_table, validate
from trimtab.lab.numerics import NUMERICS
from trimtab.report.runfiles import load as read_run
from trimtab.store import rollout_log

# NUMERICS -> what 20 batches gave: the tokens sampled, and a few means to two digits. A change of either means other numbers from the
# same configuration: raise NUMERICS and write the new digest beside it, or find out what has changed unintendedly.
GOLDEN = {1: "be8b14aa585dab12"}

# The same of six batches on other paths. Means were chosen that rounding does not bring near another second digit: runs with the
# instructions of other processors gave the same digests.
SHORT = ["learner.batches=6", "rollout.prompts_per_batch=4", "rollout.group_size=4", "eval.prompts=1", "runtime.kind=lockstep"]
TWICE = ["runtime.lag=2", "learner.updates_per_batch=2"]
PATHS: dict[str, tuple[list[str], Sequence[str]]] = {
    "gac, two passes in mini-batches": (
        [*TWICE, "learner.epochs=2", 'methods=["grpo", "ppo_clip", { name = "gac", c_low = 0.1, c_high = 0.6 }]'],
        ("kl/k3", "grad/raw_norm", "method/gac/projected", "method/gac/skipped", "method/ppo_clip/clipped"),
    ),
    "copc, tabular critic": (
        [
            "runtime.lag=2",
            'methods=["copc"]',
            'learner.critic={ kind = "tabular", warmup = 1, optimizer = { lr = 0.02 } }',
            'learner.reduction="token_mean"',
        ],
        ("kl/k3", "method/copc/kappa_distance", "method/copc/weight_squared", "method/privileged_critic/explained_variance"),
    ),
    "m2po": (
        [*TWICE, "learner.optimizer.lr=1e-3", 'methods=["grpo", "m2po"]'],
        ("kl/k3", "grad/raw_norm", "method/m2po/clipped"),
    ),
    "m2po as a mask, decoupled": (
        [*TWICE, "learner.optimizer.lr=1e-3", 'methods=["decoupled", "m2po_mask", "grpo", "ppo_decoupled"]'],
        ("kl/k3", "grad/raw_norm", "method/m2po_mask/masked"),
    ),
    "KL in the reward, step rewards, swaps in flight": (
        [
            "runtime.lag=3",
            "runtime.swap_every=2",
            'task.shaping={ kind = "local" }',
            'methods=[{ name = "kl_reward", beta = 0.1 }, "seq_tis", "opob", "ess"]',
        ],
        ("kl/k3", "method/kl_reward/kl", "reward/mean", "age/mean", "ess/ratio", "method/opob/gradient_change"),
    ),
}
GOLDEN_PATHS = {
    1: {
        "gac, two passes in mini-batches": "429abc214f8a887d",
        "copc, tabular critic": "c9362f28671643b0",
        "m2po": "690c2e45a60ae5df",
        "m2po as a mask, decoupled": "0fda07ad4b77e2d1",
        "KL in the reward, step rewards, swaps in flight": "538cbe82eaef5da5",
    }
}


def digest(tokens: object, means: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([tokens, list(means)]).encode()).hexdigest()[:16]


def means(folder: Path, names: Sequence[str]) -> list[str]:
    run = read_run(folder, "run")
    return [f"{run.mean(name):.1e}" for name in names]


@pytest.mark.slow
def test_twenty_batches_are_what_they_were(tmp_path: Path) -> None:
    table = override(
        read_table("quickstart"),
        ["runtime.kind=lockstep", "runtime.lag=2", "learner.batches=20", "rollout.prompts_per_batch=4", "eval.prompts=8"],
    )
    runs.train(validate(table), tmp_path / "run")
    found = means(tmp_path / "run", ("ess/ratio", "kl/k3", "accuracy/train", "opob/baseline", "step/multiplier", "length/mean"))
    assert GOLDEN.get(NUMERICS) == digest(sorted(runs.tokens(tmp_path / "run").items()), found), found


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_six_batches_are_what_they_were(path: str, tmp_path: Path) -> None:
    changes, names = PATHS[path]
    runs.train(validate(override(read_table("quickstart"), [*SHORT, *changes])), tmp_path / "run")
    groups = [g for entry in rollout_log.read(tmp_path / "run" / "rollouts") for g in entry.groups]  # also without signal: not trained on
    tokens = sorted((g.slot.epoch, g.slot.index, r.member, [s.tokens.tolist() for s in r.segments]) for g in groups for r in g.rollouts)
    found = means(tmp_path / "run", names)
    new = digest(tokens, found)
    assert new == GOLDEN_PATHS.get(NUMERICS, {}).get(path), (
        f"{path}: the same configuration gives other numbers ({', '.join(found)}); where that is meant, raise NUMERICS in lab/numerics.py "
        f"and write the new digests beside it, here {new}"
    )
