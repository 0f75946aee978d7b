"""Invariant 1: lag zero is synchronous.

Lockstep with lag 0 equals an independent synchronous loop bit for bit, after every batch; the local runtime with ``max_lag = 0``
samples the same tokens and, in float64, reaches the same weights to 1e-8.
"""

import ast
from itertools import islice
from pathlib import Path

import pytest

from support import rewards, runs
from support import sync_loop as oracle
from support.sync_loop import Sizes, sync_loop
from trimtab.engines.digest import weights_digest
from trimtab.records import Json

BATCHES = 20
EVERY_BATCH: dict[str, Json] = {"every": 1, "keep": 100}
FLOAT64: dict[str, Json] = {"dtype": "float64"}


@pytest.mark.parametrize("methods", [["grpo", "seq_tis"], ["vcpo"]], ids=["grpo", "vcpo"])
def test_lockstep_with_lag_zero_is_the_synchronous_loop_to_the_bit(tmp_path: Path, methods: list[Json]) -> None:
    config = runs.config(
        tmp_path,
        methods,
        runtime={"kind": "lockstep", "lag": 0},
        learner={"batches": BATCHES, "optimizer": {"lr": runs.LR}},
        store=EVERY_BATCH,
    )
    summary = runs.train(config, tmp_path / "run")

    sizes = Sizes(runs.GROUPS, runs.MEMBERS, runs.NEW_TOKENS, runs.LR)
    loop = sync_loop(tmp_path / "model", runs.questions(), lambda response: rewards.digit("", response, "", {}), methods == ["vcpo"], sizes)
    expected = [weights_digest(weights) for weights in islice(loop, BATCHES)]

    assert [runs.digest_after(tmp_path / "run", n) for n in range(1, BATCHES + 1)] == expected
    assert len(set(expected)) == summary.applied > BATCHES / 2  # it did learn, so equality means something
    assert summary.max_age == 0


def test_the_synchronous_loop_shares_only_engine_forward_and_mathematics() -> None:
    imports = [n for n in ast.walk(ast.parse(Path(oracle.__file__).read_text())) if isinstance(n, ast.Import | ast.ImportFrom)]
    names = [name for n in imports for name in ([n.module or ""] if isinstance(n, ast.ImportFrom) else [a.name for a in n.names])]
    rooms = {name.split(".")[1] for name in names if name.startswith("trimtab.")}
    assert rooms == {"engines", "learner", "records"}
    assert not any(name.startswith("support") for name in names)


@pytest.mark.slow
def test_local_with_max_lag_zero_samples_the_same_tokens_and_learns_the_same_weights(tmp_path: Path) -> None:
    batches = 6
    runtimes: dict[str, dict[str, Json]] = {
        "lockstep": {"kind": "lockstep", "lag": 0},
        "local": {"kind": "local", "max_lag": 0, "workers": 1},
    }
    for name, runtime in runtimes.items():
        learner: dict[str, Json] = {"batches": batches, "optimizer": {"lr": runs.LR}, **FLOAT64}
        config = runs.config(tmp_path, ["vcpo"], runtime=runtime, learner=learner, engine={"kind": "torch", **FLOAT64})
        assert runs.train(config, tmp_path / name).max_age == 0

    tokens = runs.tokens(tmp_path / "local")
    assert tokens == runs.tokens(tmp_path / "lockstep")
    assert len(tokens) == batches * runs.GROUPS * runs.MEMBERS
    assert runs.furthest(*(runs.weights_after(tmp_path / name, batches) for name in runtimes)) <= 1e-8
