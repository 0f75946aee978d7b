"""What a cell is, as a number: equal keys are the same run."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from trimtab.config.models import model_folder
from trimtab.config.run import RunConfig
from trimtab.control.chain import Chain
from trimtab.lab import warm
from trimtab.lab.numerics import NUMERICS
from trimtab.plugins import targets
from trimtab.pool.options import ADMISSIONS, LagOptions
from trimtab.records import Json, TrimtabError

# What a run is called, how durable and how watched it is: numbers do not depend on it.
ASIDE = (("name",), ("store",), ("verifier",), ("telemetry", "tensorboard"), ("telemetry", "timeline"), ("learner", "keep_refused"))
LENGTH = 24  # hexadecimal digits kept


def key(config: RunConfig, runner: str, options: dict[str, Json], numerics: int = NUMERICS) -> str:
    """SHA-256 of the resolved configuration, without names and paths.

    Bundles are expanded and defaults written out. In place of paths (model, reference, data) stand the digests of what lies there,
    in place of a model that is made on demand its recipe;
    code from outside Trimtab (methods, a reward function, a runner) counts with its source.
    """
    table = cast("dict[str, Json]", config.model_dump(mode="json"))
    chain = config.chain()
    table["methods"] = cast(Json, chain.describe())
    for path in ASIDE:
        node = table
        for part in path[:-1]:
            node = cast("dict[str, Json]", node[part])
        node.pop(path[-1], None)
    recipe = warm.recipe(config.model, options)
    table["model"] = _tree(str(model_folder(config.model))) if recipe is None else recipe.model_dump(mode="json")
    options = {name: value for name, value in options.items() if name != warm.RECIPES}
    learner, task = cast("dict[str, Json]", table["learner"]), cast("dict[str, Json]", table["task"])
    if config.learner.reference is not None:
        learner["reference"] = _tree(str(model_folder(config.learner.reference)))
    for name in ("path", "eval_path"):
        if isinstance(task.get(name), str):
            task[name] = _tree(str(task[name]))
    code = sorted({_source(module) for module in _outside(config, chain, runner)})
    whole: Json = {"numerics": numerics, "runner": runner, "options": options, "config": table, "code": cast(Json, code)}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:LENGTH]


def _outside(config: RunConfig, chain: Chain, runner: str) -> list[str]:
    """Modules of other people's code in a run."""
    admission = targets(ADMISSIONS).get(config.runtime.admission, "") if isinstance(config.runtime, LagOptions) else ""
    functions = [name for name in (str(getattr(config.task, "reward", "")), runner, admission) if ":" in name]
    chosen = (*chain.methods, config.engine, config.task, config.task.shaping, config.learner.critic)
    modules = [type(x).__module__ for x in chosen] + [name.partition(":")[0] for name in functions]
    return [m for m in modules if m.partition(".")[0] != "trimtab"]


@lru_cache(maxsize=64)
def _tree(path: str) -> str:
    """Digest of a file, or of the files of a folder with their names."""
    root = Path(path)
    files = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]
    digest = hashlib.sha256()
    for file in files:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise TrimtabError.field("path", str(file), f"it cannot be read ({error.strerror}); an experiment needs it") from None
        digest.update(f"{file.relative_to(root)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _source(module: str) -> str:
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        raise TrimtabError.field("module", module, "it cannot be imported; run in its folder or install it")
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()
