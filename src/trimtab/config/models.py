"""Where a run's model lies."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from trimtab.records import TrimtabError

PREFIX, RUN = "package:", "run:"
EXPORTED = "exported"  # below a run's folder: what `trimtab export` has made of its checkpoints


def shipped() -> list[str]:
    """Names of the model folders that come with Trimtab."""
    root = resources.files("trimtab.config").joinpath("models")
    return sorted(p.name for p in root.iterdir() if p.joinpath("config.json").is_file()) if root.is_dir() else []


def model_folder(name: str) -> Path:
    """``package:NAME`` for a shipped folder, ``run:PATH`` for the result of a run or else its newest export, or the path as written."""
    if name.startswith(RUN):
        return _of_run(name, Path(name.removeprefix(RUN)))
    if not name.startswith(PREFIX):
        return Path(name)
    wanted = name.removeprefix(PREFIX)
    if wanted not in shipped():
        raise TrimtabError.field("model", name, f"no such model comes with Trimtab (there are: {', '.join(shipped()) or 'none'})")
    return Path(str(resources.files("trimtab.config").joinpath("models", wanted)))


def _of_run(name: str, run: Path) -> Path:
    if not (run / "config.json").is_file():
        raise TrimtabError.field("model", name, f"{run} is no run folder; give the one that `trimtab train` wrote to")
    exported = sorted((run / EXPORTED).glob("[0-9]*"))
    for folder in (run / "model", *reversed(exported)):
        if folder.is_dir():
            return folder
    raise TrimtabError.field("model", name, f"that run has not ended; make a model of its newest checkpoint: trimtab export {run}")


def anchored(name: str) -> str:
    """The same model for a reader who stands elsewhere: relative paths are made absolute."""
    if name.startswith(PREFIX):
        return name
    prefix = RUN if name.startswith(RUN) else ""
    return prefix + str(Path(name.removeprefix(prefix)).absolute())
