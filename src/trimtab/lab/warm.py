"""Initial policies made on demand: recipes in the experiment file, each trained once and kept in the laboratory's folder by content.

    [options.models.large]           # fields of trimtab.lab.recipe.WarmstartOptions, as of `trimtab warmstart`
    task = "countdown"
    phases = [{ steps = 2000, q = 0.02, lr = 3e-3, demonstrations = 64, decay = true }]

    [arms.tis]
    model = "warm:large"

The first run that needs a model makes it, others wait. ``warm_s`` of ``values.json`` is what making it took.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from trimtab.lab.mistakes import checked
from trimtab.lab.numerics import NUMERICS
from trimtab.lab.recipe import WarmstartOptions
from trimtab.records import Json, TrimtabError
from trimtab.store.durable import write_atomic

PREFIX = "warm:"
RECIPES = "models"  # in an experiment's options
FOLDER = "models"  # in the laboratory's
MADE = "made.json"


def recipe(model: str, options: Mapping[str, Json]) -> WarmstartOptions | None:
    """What makes ``model``; None where it is no model of this kind."""
    if not model.startswith(PREFIX):
        return None
    name = model.removeprefix(PREFIX)
    recipes = options.get(RECIPES)
    if not isinstance(recipes, dict) or name not in recipes:
        there = ", ".join(recipes) if isinstance(recipes, dict) else "none"
        raise TrimtabError.field("model", model, f"options.models has no such recipe; there are {there}")
    return checked(WarmstartOptions, options, RECIPES, name)


def made(wanted: WarmstartOptions, root: Path) -> tuple[Path, float]:
    """The folder of that model below ``root``, made now if it is not there, and the seconds that took."""
    root.mkdir(parents=True, exist_ok=True)
    described = {"numerics": NUMERICS, **wanted.model_dump(mode="json")}
    folder = root / hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:24]
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # goes with the process
        if not (folder / MADE).exists():
            from trimtab.lab.warmstart import make

            begun = time.perf_counter()
            for line in make(wanted, folder):
                sys.stderr.write(f"{line}\n")
            told = {"wall_s": round(time.perf_counter() - begun, 1), "recipe": described}
            write_atomic(folder / MADE, (json.dumps(told, indent=1) + "\n").encode())
    return folder, float(json.loads((folder / MADE).read_bytes())["wall_s"])
