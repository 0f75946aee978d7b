"""``warmstart``, ``eval`` and ``export``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from trimtab.foreign import printable
from trimtab.records import TrimtabError


def evaluate(source: str, overrides: Sequence[str], model: Path | None, as_json: bool) -> None:
    """Held-out score and accuracy: of a run's result, or of the model a configuration names."""
    import torch

    torch.set_num_threads(1)
    from trimtab.config.load import load, override, read_resolved, validate
    from trimtab.config.models import model_folder
    from trimtab.engines.checkpoint import load_policy
    from trimtab.rollout.evaluate import shortfall
    from trimtab.rollout.sampler import Sampler
    from trimtab.rollout.screen import held_out

    run = Path(source)
    if (run / "model.safetensors").is_file():
        remedy = f"this is a model folder; name a configuration for its task: trimtab eval FILE --model {source}"
        raise TrimtabError.field("source", source, remedy)
    if (run / "config.json").is_file():
        config = validate(override(read_resolved(run / "config.json"), overrides))
        folder = model or run / "model"
        if model is None and not folder.is_dir():
            raise TrimtabError.field(
                "run",
                source,
                f"it has not ended, so it has no model folder; make one with `trimtab export {source}` and name it with --model",
            )
    else:
        config = load(source, overrides)
        folder = model or model_folder(config.model)
    sampler = Sampler.build(
        partial(load_policy, folder),
        task=config.task,
        verifier=config.verifier,
        rollout=config.rollout,
        engine=config.engine,
        seed=config.seed,
    )
    try:
        if said := shortfall(config.eval, sampler.task):
            print(f"note: {said}", file=sys.stderr)
        rows = held_out(sampler.task, sampler.renderer, config.eval.prompts)
        for said in (*sampler.renderer.notes, *sampler.task.data.notes, *rows.notes):
            print(f"note: {said}", file=sys.stderr)
        found = sampler.evaluate(config.eval)
    finally:
        sampler.close()
    if as_json:
        print(json.dumps({"model": str(folder)} | found.to_json(), indent=1))
    else:
        listed = ", ".join(f"{n} {name}" for name, n in found.outcomes.items() if n)
        print(f"{folder}: held-out {found.text()}")
        print(f"responses: {listed}; mean length {found.length:.1f} tokens")
        if found.doubtful:
            print(f"not to be believed: {found.failed:.0%} failed, more than eval.max_error_share; most often: {printable(found.error)}")


def warmstart(out: Path, seed: int, overrides: Sequence[str]) -> None:
    """Train the quickstart's initial policy and save it."""
    import torch

    torch.set_num_threads(1)
    from trimtab.lab.recipe import WarmstartOptions
    from trimtab.lab.warmstart import make

    values = {}
    for text in overrides:
        key, _, value = text.partition("=")
        if key not in WarmstartOptions.model_fields:
            raise TrimtabError.field("warmstart", text, f"unknown key; there are {', '.join(WarmstartOptions.model_fields)}")
        values[key] = value
    try:
        options = WarmstartOptions.model_validate({"seed": seed, **values})
    except ValidationError as error:
        first = error.errors()[0]
        raise TrimtabError.field(".".join(map(str, first["loc"])), first["input"], first["msg"]) from None
    for line in make(options, out):
        print(line)


def export(run: Path, number: int | None, out: Path | None) -> None:
    """Write a checkpoint as a model folder, and say where it is."""
    from trimtab.runtime.export import export as make

    print(make(run, number, out))
