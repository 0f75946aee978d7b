"""One small finished run for everything that looks at runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from support import runs
from support.cli import Ran, cli
from trimtab.config.load import to_toml

BATCHES = 6


@dataclass(frozen=True, slots=True)
class Finished:
    """``home`` holds the configuration, the model and the data; ``run`` is the run folder, ``ran`` what the command said."""

    home: Path
    run: Path
    file: Path
    ran: Ran


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``tiny.toml`` and what it names: lockstep, lag 2."""
    home = tmp_path_factory.mktemp("home")
    config = runs.config(
        home,
        ["vcpo"],
        runtime={"kind": "lockstep", "lag": 2},
        learner={"batches": BATCHES, "optimizer": {"lr": runs.LR}},
        rollout={"max_new_tokens": 8, "prompts_per_batch": 4, "group_size": 4},
        store={"every": 2},
    )
    (home / "tiny.toml").write_text(to_toml(config))
    return home


@pytest.fixture(scope="session")
def finished(home: Path) -> Finished:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        ran = cli("train", "tiny.toml", "name=done")
    return Finished(home, home / "runs" / "done", home / "tiny.toml", ran)
