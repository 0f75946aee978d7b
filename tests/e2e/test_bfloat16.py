"""bfloat16 from end to end: masters in the checkpoint, their rounding everywhere else, and resumes that are bit for bit the same run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file
from torch import Tensor

from support import runs
from trimtab.config.run import RunConfig
from trimtab.records import Json
from trimtab.store import checkpoint

BATCHES = 8
DTYPE: dict[str, Json] = {"dtype": "bfloat16"}


def configure(folder: Path, runtime: dict[str, Json], **tables: Mapping[str, Json]) -> RunConfig:
    learner: dict[str, Json] = {"batches": BATCHES, "optimizer": {"lr": 1e-5}, **DTYPE}
    return runs.config(folder, ["vcpo"], runtime=runtime, learner=learner, engine={"kind": "torch", **DTYPE}, store={"every": 3}, **tables)


def masters_after(path: Path, batches: int) -> list[Tensor]:
    learner = cast("dict[str, dict[str, dict[str, list[Tensor]]]]", checkpoint.load(path / "checkpoints", batches)["learner"])
    return learner["optimizers"]["actor"]["masters"]


def test_an_interrupted_run_goes_on_from_its_masters_bit_for_bit(tmp_path: Path) -> None:
    config = configure(tmp_path, {"kind": "lockstep", "lag": 1})
    assert runs.train(config, tmp_path / "whole").status == "done"
    assert runs.train(config, tmp_path / "run", runs.Interrupting(after=5)).status == "interrupted"
    assert runs.resume(tmp_path / "run").status == "done"
    assert runs.digest_after(tmp_path / "whole", BATCHES) == runs.digest_after(tmp_path / "run", BATCHES)
    for a, b in zip(masters_after(tmp_path / "whole", BATCHES), masters_after(tmp_path / "run", BATCHES), strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)
    assert runs.lines(tmp_path / "whole" / "metrics.jsonl") == runs.lines(tmp_path / "run" / "metrics.jsonl")


def test_masters_are_in_the_checkpoint_and_their_rounding_is_published_evaluated_and_saved(tmp_path: Path) -> None:
    """Workers compare digests and log-probs at every publication, so a run that ends has been served what the checkpoint says."""
    config = configure(tmp_path, {"kind": "local", "max_lag": 2}, eval={"prompts": 8, "every": 4})
    summary = runs.train(config, tmp_path / "run")
    assert summary.status == "done"
    published, masters = runs.weights_after(tmp_path / "run", BATCHES), masters_after(tmp_path / "run", BATCHES)
    assert len(published) == len(masters)
    for (name, p), master in zip(published.items(), masters, strict=True):
        assert p.dtype == torch.bfloat16, name
        assert torch.equal(p, master.bfloat16()), name
    assert any(not torch.equal(p.float(), master) for p, master in zip(published.values(), masters, strict=True))
    for folder in ("model", "best"):
        saved = load_file(tmp_path / "run" / folder / "model.safetensors")
        assert {t.dtype for t in saved.values()} == {torch.bfloat16}, folder
    assert all(
        torch.equal(saved_final, published[name]) for name, saved_final in load_file(tmp_path / "run/model/model.safetensors").items()
    )

    shares = [r["metrics"] for r in runs.lines(tmp_path / "run" / "metrics.jsonl")]
    moved = [(m["step/moved"], m["step/moved_masters"]) for m in shares if "step/moved" in m]  # type: ignore[operator,index]
    assert moved
    assert all(0 < p[0] < q[0] for p, q in moved)  # type: ignore[index,operator]
    assert summary.moved_weights is not None
    assert 0 < summary.moved_weights < 0.5
