"""``config check``: what a configuration names, looked at without loading a model or running anybody's code."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from trimtab.config.load import load
from trimtab.config.models import model_folder
from trimtab.config.run import RunConfig
from trimtab.engines.folder import check_folder
from trimtab.records import TrimtabError
from trimtab.tasks.load import load_task
from trimtab.tasks.options import JsonlOptions


def check(source: str, overrides: Sequence[str], deep: bool) -> None:
    """Say what was looked at; the first thing that is wrong is a ``TrimtabError``. ``deep``: also load all of it, as a run would."""
    config = load(source, overrides)
    config.require_extras()
    names = ", ".join(m.name for m in config.chain().methods)
    said = list(_deeply(config) if deep else looked_at(config))
    print(f"{source} is sound: {config.learner.batches} batches, {config.runtime.kind}, methods {names}")
    for line in said:
        print(f"  {line}")


def looked_at(config: RunConfig) -> Iterator[str]:
    """Model folders, rows and reward: one line each, or a ``TrimtabError``."""
    folder = model_folder(config.model)
    yield f"model: {folder}, {check_folder(folder):,} parameters"
    if config.learner.reference:
        folder = model_folder(config.learner.reference)
        yield f"reference: {folder}, {check_folder(folder):,} parameters"
    if isinstance(config.task, JsonlOptions):
        task = load_task(config.task)
        yield f"task: {task.name}, {len(task):,} rows, {task.eval_size:,} for evaluation"
        if config.task.reward != "exact":
            yield f"reward: {config.task.reward} in {find_reward(config.task.reward)}"
    else:
        yield f"task: {type(config.task).__name__.removesuffix('Options')}; its rows are made when they are needed, `--deep` makes them"


def find_reward(name: str) -> str:
    """The file that ``module:function`` names, which is read and not run.

    Raises:
        TrimtabError: there is no such module, or its file plainly has no such name at its top level.
    """
    module, _, path = name.partition(":")
    top, *inner = module.split(".")
    spec = None if top in sys.stdlib_module_names else PathFinder.find_spec(top, [os.getcwd()])
    try:
        spec = spec if spec is not None and not inner else importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        remedy = f"there is no module {module} on the Python path or in {os.getcwd()}; write it, or correct the name"
        raise TrimtabError.field("task.reward", name, remedy)
    file = spec.origin or module
    if not file.endswith(".py"):
        return file
    try:
        tree = ast.parse(Path(file).read_bytes(), file)
    except (SyntaxError, ValueError) as error:
        raise TrimtabError.field("task.reward", name, f"{file} is no Python ({error})") from None
    first = path.partition(".")[0]
    if not _star(tree) and first not in _names(tree):
        raise TrimtabError.field("task.reward", name, f"{file} defines no {first}")
    return file


def _star(tree: ast.Module) -> bool:
    """Names come from elsewhere: what there is cannot be read off the file."""
    return any(isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names) for node in ast.walk(tree))


def _names(tree: ast.Module) -> set[str]:
    """Every name that is bound anywhere in a module, in a branch or a ``try`` as well."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(a.asname or a.name).partition(".")[0] for a in node.names}
    return found


def _deeply(config: RunConfig) -> Iterator[str]:
    import torch

    torch.set_num_threads(1)
    from trimtab.runtime.doctor import configuration

    for found in configuration(config):
        if found.name == "configuration":  # what a run would end with
            raise TrimtabError(found.says)
        yield f"{found.name}: {found.says}"
