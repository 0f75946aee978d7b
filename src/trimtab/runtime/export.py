"""A checkpoint as an ordinary Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from torch import Tensor

from trimtab.config.load import read_resolved, validate
from trimtab.config.models import EXPORTED, model_folder
from trimtab.engines.checkpoint import load_policy, save_policy
from trimtab.records import TrimtabError
from trimtab.store import checkpoint
from trimtab.store.run_folder import RunFolder


def export(path: Path, number: int | None = None, out: Path | None = None) -> Path:
    """Write the weights after ``number`` batches (default: the newest checkpoint that verifies); returns the folder.

    The folder is ``exported/NNNNNN`` in the run's own, unless ``out`` says another; tokenizer and configuration are those of the model
    that the run started from. The run may be going on.

    Raises:
        TrimtabError: no such run or checkpoint, or the model it started from is gone.
    """
    import torch

    folder = RunFolder.open(path)
    config = validate(read_resolved(folder.config_json))
    if number is None:
        found = checkpoint.load_latest(folder.checkpoints)
        number, parts = found.number, found.parts
    else:
        parts = checkpoint.load(folder.checkpoints, number)
    policy = load_policy(model_folder(config.model), getattr(torch, config.learner.dtype))
    saved = cast(Mapping[str, Tensor], parts["model"])
    own = dict(policy.model.named_parameters())
    if own.keys() != saved.keys():
        raise TrimtabError.field("model", config.model, f"it is not the model that {path} started from: their tensors have other names")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(saved[name])
    target = out or path / EXPORTED / f"{number:06d}"
    save_policy(policy.model, policy.tokenizer, target)
    return target
