"""The privileged critic's table through a checkpoint: resumed is uninterrupted, bit for bit; its metrics carry its label."""

from pathlib import Path

import torch

from support import runs
from trimtab.config.load import load
from trimtab.store import checkpoint

BATCHES = 6
OVERRIDES = (
    'methods=["copc"]',
    'learner.reduction="token_mean"',
    f"learner.batches={BATCHES}",
    'learner.critic={kind = "tabular", warmup = 2, optimizer = {lr = 2e-2}}',
    'runtime={kind = "lockstep", lag = 1}',
    "rollout.prompts_per_batch=16",
    "rollout.group_size=1",
    "eval.prompts=8",
)


def test_resumed_inside_and_after_its_warm_up(tmp_path: Path) -> None:
    config = load("quickstart", list(OVERRIDES))
    assert runs.train(config, tmp_path / "whole").status == "done"
    assert runs.train(config, tmp_path / "run", runs.Interrupting(after=1)).status == "interrupted"
    assert runs.resume(tmp_path / "run", runs.Interrupting(after=4)).status == "interrupted"
    assert runs.resume(tmp_path / "run").status == "done"
    assert runs.digest_after(tmp_path / "whole", BATCHES) == runs.digest_after(tmp_path / "run", BATCHES)
    assert runs.lines(tmp_path / "whole" / "metrics.jsonl") == runs.lines(tmp_path / "run" / "metrics.jsonl")
    tables = [table(tmp_path / name) for name in ("whole", "run")]
    assert torch.equal(*tables)
    assert tables[0].any()
    names = {name for line in runs.lines(tmp_path / "whole" / "metrics.jsonl") for name in line["metrics"]}
    assert "method/privileged_critic/explained_variance" in names
    assert not any(name.startswith("method/critic/") for name in names)


def table(path: Path) -> torch.Tensor:
    learner = checkpoint.load(path / "checkpoints", BATCHES)["learner"]
    found = learner["critic"]["table"]
    assert isinstance(found, torch.Tensor)
    return found
