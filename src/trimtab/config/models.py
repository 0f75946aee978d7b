"""Where a run's model lies."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from trimtab.records import TrimtabError

PREFIX = "package:"


def shipped() -> list[str]:
    """Names of the model folders that come with Trimtab."""
    root = resources.files("trimtab.config").joinpath("models")
    return sorted(p.name for p in root.iterdir() if p.joinpath("config.json").is_file()) if root.is_dir() else []


def model_folder(name: str) -> Path:
    """``package:NAME`` for a shipped folder, else the path as written."""
    if not name.startswith(PREFIX):
        return Path(name)
    wanted = name.removeprefix(PREFIX)
    if wanted not in shipped():
        raise TrimtabError.field("model", name, f"no such model comes with Trimtab (there are: {', '.join(shipped()) or 'none'})")
    return Path(str(resources.files("trimtab.config").joinpath("models", wanted)))
